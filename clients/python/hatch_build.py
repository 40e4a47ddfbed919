"""Copies what the packages of all languages share. An sdist has the copies already."""

import pathlib
import shutil
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = pathlib.Path(__file__).parent
SHARED = {
    "../go/publish/write.lua": "src/gatehouse/write.lua",
    "../../LICENSE": "LICENSE",
}


class Shared(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        for source, target in SHARED.items():
            if (ROOT / source).exists():
                shutil.copyfile(ROOT / source, ROOT / target)
