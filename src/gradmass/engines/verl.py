"""verl: a policy weight by the name of its advantage estimator, in the run a team already has.

    algorithm.adv_estimator=gradmass_fade trainer.v1.trainer_mode=gradmass_sync

It is loaded by verl itself, as an entry point of the group ``verl.plugins`` (from 0.9.0; before
that, ``VERL_USE_EXTERNAL_MODULES=gradmass.engines.verl``), in every process. So it imports nothing:
the estimators are registered right after the module of verl that lists them, and the trainers
right after theirs, and an error there is an error of that import and not swallowed.
docs/engines.md says what is replaced, logged and refused.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

AFTER = {
    "verl.trainer.ppo.core_algos": "gradmass.engines.verl_estimators",
    "verl.trainer.ppo.v1": "gradmass.engines.verl_trainer",
}
"""Modules of verl, and ours whose ``register`` is called after them."""


class AfterImport(MetaPathFinder):
    """Calls ``register`` of one of our modules as soon as a module of verl is imported.

    Args:
        name: Of verl's module.
        ours: Name of ours.
    """

    def __init__(self, name: str, ours: str) -> None:
        self.name, self.ours = name, ours

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where verl's module is, with our step after its own; None for every other module."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            importlib.import_module(self.ours).register()

        loader: Any = spec.loader
        loader.exec_module = execute_and_register
        return spec


def install() -> None:
    """Register with what verl has imported already, and with the rest once it is."""
    for name, ours in AFTER.items():
        if name in sys.modules:
            importlib.import_module(ours).register()
        elif not any(isinstance(f, AfterImport) and f.name == name for f in sys.meta_path):
            sys.meta_path.insert(0, AfterImport(name, ours))


install()
