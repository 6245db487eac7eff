"""What pyproject.toml cannot say: the folder grammars/ ships inside the package, as decodekit.grammars."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["decodekit*"]), "decodekit.grammars"],
    package_dir={"decodekit.grammars": "grammars"},
)
