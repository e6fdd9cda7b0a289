"""TRL: a policy weight in ``GRPOTrainer``, by one line more in the run a team already has.

    from gradmass.engines.trl import WeightedGRPOTrainer
    from gradmass.weights.fade import Fade

    trainer = WeightedGRPOTrainer(weight=Fade(), model=..., reward_funcs=..., args=..., ...)

Everything else is TRL's. ``make_trainer`` puts the weight on another base, such as a subclass of
your own, or ``trl.GRPOTrainer`` after ``import unsloth``. Neither TRL nor torch is imported before
one of the two is used. docs/engines.md says what is replaced, logged and refused.
"""

from typing import TYPE_CHECKING, Any

from gradmass.types import UsageError

if TYPE_CHECKING:
    WeightedGRPOTrainer: Any

__all__ = ["WeightedGRPOTrainer", "make_trainer"]


def make_trainer(base: Any = None) -> Any:
    """A subclass of a GRPO trainer whose rewards are weighed by a policy weight.

    Args:
        base: ``trl.GRPOTrainer`` as it is now (None), or a subclass of it. Not ``RLOOTrainer``,
            which subtracts a leave-one-out baseline of its own.

    Returns:
        The class. Beside the arguments of its base it takes ``weight``, ``mode``, ``success`` and
        ``success_at`` (see ``trl_mixin.WeightMixin``).

    Raises:
        UsageError: TRL is not installed, or the base has not the methods that are hooked; the line
            names what is missing.
    """
    try:
        import trl
        from trl import GRPOTrainer
    except (ImportError, RuntimeError) as error:  # older TRL wraps the one in the other
        raise UsageError(
            f"gradmass.engines.trl needs TRL ({' '.join(str(error).split())}): "
            "pip install 'gradmass[trl]'"
        ) from error
    from gradmass.engines.trl_checks import check_base
    from gradmass.engines.trl_mixin import WeightMixin

    base = GRPOTrainer if base is None else base
    check_base(base, trl.__version__)
    name = "WeightedGRPOTrainer" if base is GRPOTrainer else f"Weighted{base.__name__}"
    return type(name, (WeightMixin, base), {"__module__": __name__, "__doc__": WeightMixin.__doc__})


def __getattr__(name: str) -> Any:
    if name != "WeightedGRPOTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    cls = globals()[name] = make_trainer()
    return cls
