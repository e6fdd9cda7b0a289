"""A weight inside a trainer that people already run.

An engine's file collects rewards, groups and measurements, hands them to the weight, and writes
the weights back; the mathematics is in ``weights`` and ``metrics``. ``trl`` is a mixin for TRL's
``GRPOTrainer``, ``verl`` a plug-in of estimators and trainers, ``groups`` one plain function for
every engine that hands over a list of groups, and ``doctor`` says whether an installed engine is
one these were written for.
"""
