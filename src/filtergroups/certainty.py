"""In words: what the intervals and probabilities of predictions are worth, and how to get better ones."""

from collections.abc import Collection, Mapping


def in_words(
    classes: Mapping[str, bool], corrected: Collection[str], *, passes: int, fixed: bool, remedy: str, stale: str = ""
) -> str:
    """One line for all tasks.

    classes: by task, whether it answers with classes. fixed: are all passes the same? remedy: what corrects them.
    stale: why a correction that is there is not used.
    """
    without = [name for name in classes if name not in corrected]
    if not without:
        return f"{_things(classes)} are corrected, as `calibrate` fitted them"
    because = f"{stale}; " if stale else ""
    reals = [name for name in without if not classes[name]]
    if reals and passes < 2:
        why = "every kernel is fixed, so that all passes are the same" if fixed else "there is one pass"
        more = f" for {', '.join(reals)}" if corrected else ""
        more += " and corrects probabilities" if len(reals) < len(without) else ""
        # Others were corrected, so these could not be.
        more += " once enough of its examples are labelled for that" if corrected else ""
        return f"no spread: {why}; {because}{remedy} gives 90 % intervals{more}"
    if corrected:
        return f"{_things(classes)} are corrected, but not those of {', '.join(without)}"
    return f"{_things(classes)} are not corrected; {because}{remedy} corrects them"


def _things(classes: Mapping[str, bool]) -> str:
    """What there is to be corrected."""
    kinds = classes.values()
    return " and ".join([*["90 % intervals"] * (not all(kinds)), *["probabilities"] * any(kinds)])


def passes_in_words(samples: int) -> str:
    """How many passes a prediction has."""
    return f"{samples} passes" if samples > 1 else "1 pass" if samples else "the mode network"
