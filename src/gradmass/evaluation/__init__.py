"""Ask a model a task's problems many times: what is asked, of whom, and what came of it."""

from gradmass.evaluation.answers import Answer, Engine, PromptFormat, Question, Sampling
from gradmass.evaluation.collect import collect
from gradmass.evaluation.tally import Tally

__all__ = ["Answer", "Engine", "PromptFormat", "Question", "Sampling", "Tally", "collect"]
