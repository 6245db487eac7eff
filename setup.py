"""What pyproject.toml cannot say: grammars/ ships as decodekit.grammars; folders of data are packages, too."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["decodekit*"]),
        "decodekit.grammars",
        "decodekit.evaluation.tasks",
        "decodekit.models.tiny",
    ],
    package_dir={"decodekit.grammars": "grammars"},
)
