"""The demo: generated scans, a short training, the result beside the plain answer, a report."""

from pathlib import Path

from filtergroups.config import Config
from filtergroups.config_file import make_config
from filtergroups.evaluation import evaluate
from filtergroups.network import GroupedNetwork
from filtergroups.progress import Reporter, Silent
from filtergroups.reporting import report as write_report
from filtergroups.restored import open_run
from filtergroups.tables import results_table
from filtergroups.training import resume, train


def demo_config(phantom: Path) -> Config:
    """Nine small pelvis phantoms and a narrow HighResNet: a few minutes on two cores."""
    return make_config(
        {
            "data": {
                "kind": "phantom", "root": str(phantom), "patients": 9,
                "shape": [96, 64, 20], "spacing": [4.2, 4.2, 4.2],
                "patch": 40, "padding": 4, "patches_per_patient": 40,
            },
            "network": {"name": "highresnet", "width": 0.375},
            "training": {
                "epochs": 32, "finetune_epochs": 22, "batch_size": 8, "learning_rate": 5e-3, "schedule": "cosine",
                "checkpoint_every": 100, "validate_every": 90,
            },
        }
    )  # fmt: skip


def used_by_both(network: GroupedNetwork) -> dict[str, float]:
    """By layer, the share of kernels that are in the group of all tasks and not dead."""
    dead, full = network.dead_kernels(), network.family.full
    return {
        layer.name: ((layer.assignment.mode().cpu() == full) & ~dead[layer.name]).float().mean().item()
        for layer in network.grouped_layers()
    }


def run_demo(run: Path, *, report: Reporter | None = None) -> str:
    """Train (or go on with) the demo, evaluate it and write its report; the text to show."""
    told = report or Silent()
    if (run / "config.toml").exists():
        resume(run, report=told)
    else:
        train(demo_config(run.resolve() / "phantom"), run, report=told)
    try:
        result = evaluate(run, split="test", samples=0, progress=told.preparing)
        page = write_report(run, run / "report.html", force=True, progress=told.preparing)
    finally:
        told.stop()
    shared = "\n".join(f"  {name:18} {share:.2f}" for name, share in used_by_both(open_run(run).network).items())
    written = "\n".join(f"  {path}" for path in sorted(run.iterdir()) if not path.name.startswith("."))
    heading = "share of kernels that both tasks use, by layer:"
    shown = f"see what was learned: open {page} in a browser"
    return f"\n{results_table(result)}\n\n{heading}\n{shared}\n\nwritten:\n{written}\n\n{shown}\n"
