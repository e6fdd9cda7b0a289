"""Choose, inspect and schedule the policy weights of RL with verifiable rewards."""


def __getattr__(name: str) -> str:
    # Reading the installed version takes longer than importing the weights.
    if name == "__version__":
        from importlib.metadata import version

        return version("gradmass")
    raise AttributeError(f"module 'gradmass' has no attribute {name!r}")
