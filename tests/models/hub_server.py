"""A stand-in for the Hugging Face Hub on 127.0.0.1: repositories in memory, and the requests that were made."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse


class Hub(ThreadingHTTPServer):
    """``commits[repository][commit]`` has the files by name, ``refs[repository][branch]`` a commit."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.commits, self.refs, self.requests, self.private = {}, {}, [], {}
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.shutdown()
        self.thread.join()
        self.server_close()

    def create(self, repository):
        if repository not in self.commits:
            self.commits[repository], self.refs[repository] = {}, {}
            self.put(repository, "main", {".gitattributes": b""})

    def put(self, repository, branch, files):
        """Commit all files that the branch has from now on."""
        number = f"{repository} {branch} {len(self.commits[repository])}"
        commit = hashlib.sha1(number.encode()).hexdigest()
        self.commits[repository][commit] = dict(files)
        self.refs[repository][branch] = commit
        return commit

    def files(self, repository, revision="main"):
        return self.commits[repository].get(self.refs[repository].get(revision, revision))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *parts):
        """Say nothing."""

    def answer(self, body, status=200, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self, code):
        self.answer({"error": code}, 404, X_Error_Code=code, X_Error_Message=code)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, parts = self.server, [unquote(part) for part in urlparse(self.path).path.strip("/").split("/")]
        hub.requests.append((self.command, "/".join(parts)))
        if len(parts) < 5:
            return self.missing("EntryNotFound")  # what huggingface_hub asks for besides
        listing = parts[:2] == ["api", "models"]
        user, name, _, revision, *rest = parts[2:] if listing else parts
        repository = f"{user}/{name}"
        if repository not in hub.commits:
            return self.missing("RepoNotFound")
        if (files := hub.files(repository, revision)) is None:
            return self.missing("RevisionNotFound")
        if listing:
            entries = [{"type": "file", "path": f, "size": len(b), "oid": oid(b)} for f, b in files.items()]
            return self.answer(entries, Content_Type="application/json")
        if (file := "/".join(rest)) not in files:
            return self.missing("EntryNotFound")
        commit = hub.refs[repository].get(revision, revision)
        return self.answer(files[file], ETag=f'"{oid(files[file])}"', X_Repo_Commit=commit)

    def do_POST(self):
        hub, path = self.server, unquote(urlparse(self.path).path).strip("/")
        hub.requests.append(("POST", path))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer hf_right":
            return self.answer({"error": "no"}, 401)
        if path == "api/repos/create":
            asked = json.loads(body)
            repository = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            hub.private.setdefault(repository, asked.get("private", asked.get("visibility") == "private"))
            hub.create(repository)
            return self.answer({"url": f"{hub.url}/{repository}"})
        if path == "api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        _, _, user, name, action, revision = path.split("/", 5)
        repository = f"{user}/{name}"
        if action == "branch":
            hub.refs[repository][revision] = hub.refs[repository]["main"]
            return self.answer({})
        if action == "preupload":
            asked = [file["path"] for file in json.loads(body)["files"]]
            return self.answer({"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in asked]})
        assert action == "commit"
        files = dict(hub.files(repository, revision))
        for operation in map(json.loads, body.splitlines()):
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
        commit = hub.put(repository, revision, files)
        return self.answer({"commitUrl": f"{hub.url}/{repository}/commit/{commit}", "commitOid": commit})


def oid(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
