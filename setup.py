"""Everything is in pyproject.toml; only the models, which lie outside of the package, are put into a wheel here."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithModels(build_py):
    """Copies models/ into the package as statespan/_models; a checkout installed with -e uses models/ itself."""

    def run(self) -> None:
        """Build, and add the models."""
        super().run()
        models = Path(__file__).parent / "models"
        if models.is_dir() and not self.editable_mode:
            target = Path(self.build_lib) / "statespan" / "_models"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(models, target, ignore=shutil.ignore_patterns(".*"))


setup(cmdclass={"build_py": WithModels})
