"""onnxruntime with bounds: how much memory a network may take, and how long it may run."""

import threading
from functools import cache
from typing import Any

import numpy as np

MOST_MEMORY = 1_500_000_000  # bytes of a session's tensors
SECONDS_AN_IMAGE = 60.0


class OutOfBounds(ValueError):
    """A network that cannot run, or not within its bounds."""


class TooSlow(OutOfBounds):
    """A network that takes longer than it may: fewer images at once would not help."""


def bounded_session(content: bytes) -> Any:
    """A session whose tensors have bounded memory. Nothing is computed ahead of a run, which can be stopped."""
    import onnxruntime

    _limit_memory()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what is wrong with a file is said in one line
    options.add_session_config_entry("session.use_env_allocators", "1")
    try:
        return onnxruntime.InferenceSession(
            content,
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["ConstantFolding"],
            enable_fallback=0,  # which would print a banner, and try the same again
        )
    except Exception as error:  # noqa: BLE001  # onnxruntime raises kinds of its own that share no base
        raise OutOfBounds(_first_line(error)) from None


@cache
def _limit_memory() -> None:
    """One allocator for all sessions of this process."""
    import onnxruntime

    kind, memory = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    onnxruntime.create_and_register_allocator(
        onnxruntime.OrtMemoryInfo("Cpu", kind, 0, memory),
        onnxruntime.OrtArenaCfg({"max_mem": MOST_MEMORY, "arena_extend_strategy": 1}),
    )


def run_bounded(session: Any, names: list[str], images: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs of a batch, given up where it takes longer than such a batch may.

    onnxruntime can be asked to stop between two steps only, and one step can take hours. So it runs in a thread of its
    own, which is left behind where it does not stop; it ends with the process.
    """
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    found: list[np.ndarray[Any, Any]] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            found.extend(session.run(names, {"images": images}, options))
        except Exception as error:  # noqa: BLE001  # onnxruntime raises kinds of its own that share no base
            failed.append(error)

    seconds = SECONDS_AN_IMAGE * len(images)
    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    try:
        runner.join(seconds)
    finally:
        late = runner.is_alive()  # also after Ctrl-C
        if late:
            options.terminate = True
    if late:
        raise TooSlow(f"takes more than {seconds:.0f} s for {len(images)} images")
    if failed:
        raise OutOfBounds(f"cannot be run: {_first_line(failed[0])}")
    return found


def _first_line(error: Exception) -> str:
    text = str(error)
    if "Available memory of" in text or "bad_alloc" in text or "bad allocation" in text:
        return f"needs more than {MOST_MEMORY / 1e9:.1f} GB of memory"
    return " ".join((text.strip().splitlines() or [type(error).__name__])[0].split())[:200]
