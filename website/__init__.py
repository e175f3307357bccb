"""The site: one set of Markdown files for a Git host and for MkDocs; `make site` builds it into build/site."""
