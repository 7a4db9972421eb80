"""The command line: parse, import late, call one library function."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from filtergroups import __version__
from filtergroups.naming import shown, shown_lines

app = typer.Typer(
    help="Learn which convolution kernels tasks share, and which they keep to themselves.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command
)
data_app = typer.Typer(help="Look at data, or make some.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"filtergroups {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """What stands before a command."""


RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="a TOML config")]
Force = Annotated[bool, typer.Option("--force", help="replace what is there")]


def say(text: object, file: IO[str] | None = None) -> None:
    """Print lines; what in a name or a message would make the terminal do something is shown as its escape."""
    print(shown_lines(text), file=file)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What a user can cause is said in one line, with exit code 2."""
    from filtergroups.signals import Stopped

    try:
        yield
    except Stopped as stopped:
        _say(str(stopped), stopped)
        raise typer.Exit(stopped.exit_code) from None
    except ValueError as error:  # ConfigError, DataError, RunError, CannotLift and the library's own checks
        _say(f"error: {error}", error)
        raise typer.Exit(2) from None
    except OSError as error:
        _say(f"error: {error.filename or 'a file'}: {error.strerror or error}", error)
        raise typer.Exit(2) from None
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or "can't allocate memory" in str(error)):  # as torch says it
            raise
        _say("error: expected memory for this, found too little; use smaller data, batches or networks", error)
        raise typer.Exit(2) from None
    except KeyboardInterrupt as interrupt:
        _say("stopped", interrupt)
        raise typer.Exit(130) from None


def _say(text: str, why: BaseException) -> None:
    from filtergroups.speaking import let_the_first_speak, speaks

    if speaks(why):
        print(shown(text), file=sys.stderr, flush=True)
    else:
        let_the_first_speak()


def progress_bar() -> Any:
    from filtergroups.progress import reporter

    return reporter()


@app.command()
def demo(run: Annotated[Path, typer.Option(help="where the run goes")] = Path("runs/demo")) -> None:
    """Generate phantom scans, train a grouped network on them, evaluate it and say what was written."""
    with one_line_errors():
        from filtergroups.demo import run_demo

        say(run_demo(run, report=progress_bar()))


@app.command()
def init(
    table: Annotated[Path, typer.Argument(metavar="LABELS.CSV", help="a table of image paths and labels")],
    images: Annotated[Path, typer.Option(help="the folder that the image paths are below")],
    out: Annotated[Path, typer.Option("-o", "--out", help="the config to write")] = Path("my.toml"),
    force: Force = False,
) -> None:
    """Look at a table of labels, guess the tasks and write a commented config to edit."""
    with one_line_errors():
        from filtergroups.guess import guess_config
        from filtergroups.writing import write_atomically

        if out.exists() and not force:
            raise ValueError(f"{out}: expected a new file, found one; use --force or -o")
        write_atomically(out, guess_config(table, images).encode())
        say(f"wrote {out}; look through it, then: filtergroups data check {out} && filtergroups train {out}")


@app.command()
def schema() -> None:
    """Print the JSON schema of configs, for editors that check and complete TOML."""
    from filtergroups.config_schema import SCHEMA

    print(SCHEMA.read_text(encoding="utf-8"), end="")


@data_app.command("check")
def data_check(config: ConfigFile) -> None:
    """Read every file and label, try the network on a batch, say what is wrong, change nothing."""
    with one_line_errors():
        from filtergroups.checking import check_data
        from filtergroups.config_file import load_config

        bar = progress_bar()
        try:
            checked = check_data(load_config(config), progress=bar.preparing)
        finally:
            bar.stop()
    say(checked)
    raise typer.Exit(1 if checked.problems else 0)


@data_app.command("phantom")
def data_phantom(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a new folder")],
    patients: Annotated[int, typer.Option(min=1)] = 15,
    seed: int = 0,
) -> None:
    """Write the pelvis phantom as NIfTI: MR, CT and organ labels."""
    with one_line_errors():
        from filtergroups.data.phantom import write_phantom

        bar = progress_bar()
        write_phantom(folder, patients, seed, progress=lambda done, of: bar.preparing("generating phantom", done, of))
        bar.stop()
        say(f"wrote {patients} patients to {folder}")


@app.command()
def train(
    config: ConfigFile,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="override a key")] = None,
    run: Annotated[Path | None, typer.Option(help="where the run goes; default runs/CONFIG")] = None,
) -> None:
    """Train a network as a config says."""
    with one_line_errors():
        from filtergroups.config_file import load_config
        from filtergroups.run import default_run
        from filtergroups.training import train as train_network

        folder = run or default_run(config)
        train_network(load_config(config, set_ or ()), folder, report=progress_bar())
        _say_what_is_next(folder)


def _say_what_is_next(run: Path) -> None:
    from filtergroups.speaking import is_first

    if is_first():  # the other processes of a job say nothing
        say(f"trained; next: filtergroups evaluate {run}")


@app.command()
def resume(
    run: RunFolder,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="from now on")] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="go on although data or settings are not what they were")
    ] = False,
    from_: Annotated[str, typer.Option("--from", help="last, or previous: the checkpoint before it")] = "last",
) -> None:
    """Go on with a run that was stopped."""
    with one_line_errors():
        from filtergroups.training import resume as resume_run

        resume_run(
            run, overrides=set_ or (), accept_changes=accept_changes, checkpoint=from_,  # type: ignore[arg-type]  # checked there
            report=progress_bar(),
        )  # fmt: skip
        _say_what_is_next(run)


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[Path | None, typer.Option(help="a folder of the same kind of data that the run never saw")] = None,
    split_file: Annotated[Path | None, typer.Option(help="which of them belongs to which part")] = None,
    table: Annotated[Path | None, typer.Option(help="a table of labels that the run never saw: all its rows")] = None,
    split: Annotated[str, typer.Option(help="train, selection, validation or test")] = "test",
    samples: Annotated[int, typer.Option(min=0, help="Monte Carlo passes; 0: the mode network")] = 50,
    by: Annotated[str | None, typer.Option(help="a column to report results by")] = None,
    checkpoint: Annotated[str, typer.Option(help="best, last or best-TASK")] = "best",
    statistics: Annotated[str | None, typer.Option(help="of norms: batch (the paper), running or recalibrated")] = None,
) -> None:
    """Measure a trained network; the table is printed and kept in the run's results.json."""
    with one_line_errors():
        from filtergroups.evaluation import evaluate as evaluate_run
        from filtergroups.tables import results_table

        if split not in ("train", "selection", "validation", "test"):
            raise ValueError(f"--split is train, selection, validation or test, found {split!r}")
        if statistics not in (None, "batch", "running", "recalibrated"):
            raise ValueError(f"--statistics is batch, running or recalibrated, found {statistics!r}")
        bar = progress_bar()
        try:
            result = evaluate_run(
                run, data=data, split_file=split_file, table=table, split=split, samples=samples, by=by,
                checkpoint=checkpoint, statistics=statistics, progress=bar.preparing,  # type: ignore[arg-type]  # checked above
            )  # fmt: skip
        finally:
            bar.stop()
        say(results_table(result))
        say(f"kept in {run / 'results.json'}")


@app.command()
def calibrate(
    run: RunFolder,
    samples: Annotated[int, typer.Option(min=0, help="Monte Carlo passes; 0: the mode network")] = 50,
    checkpoint: Annotated[str, typer.Option(help="best, last or best-TASK")] = "best",
) -> None:
    """Correct intervals and probabilities by one number a task, fitted on the part that chose the checkpoint."""
    with one_line_errors():
        from filtergroups.calibrating import calibrate as calibrate_run
        from filtergroups.tables import calibration_table

        bar = progress_bar()
        try:
            result = calibrate_run(run, samples=samples, checkpoint=checkpoint, progress=bar.preparing)
        finally:
            bar.stop()
        say(calibration_table(result))
        say(f"kept in {run / 'calibration.json'}; held-out figures: filtergroups evaluate {run}")


@app.command()
def export(
    run: RunFolder,
    to: Annotated[str, typer.Option(help="onnx, pt2 or safetensors")] = "onnx",
    task: Annotated[list[str] | None, typer.Option(help="only what this task needs; may be given again")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="the file; default RUN/model.FORMAT")] = None,
    checkpoint: Annotated[str, typer.Option(help="best, last or best-TASK")] = "best",
    force: Force = False,
) -> None:
    """Ship the network: each kernel in its most probable group, as a small plain network in one file."""
    with one_line_errors():
        from filtergroups.exporting import costs_table
        from filtergroups.exporting import export as export_run

        bar = progress_bar()
        try:
            made = export_run(
                run, to=to, tasks=task, out=out, checkpoint=checkpoint, force=force, progress=bar.preparing
            )
        finally:
            bar.stop()
        for note in made.notes:
            say(note)
        say(costs_table(made))
        say(f"wrote {made.path}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or an ONNX file that `export` wrote")],
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT...", help="images, scans, or folders of them")],
    out: Annotated[Path, typer.Option("-o", "--out", help="a CSV for images, a folder for scans")],
    samples: Annotated[int, typer.Option(min=0, help="Monte Carlo passes; 0: the mode network")] = 50,
    force: Force = False,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="for scans and maps: also 90 % intervals and class probabilities")
    ] = False,
    precision: Annotated[
        float | None, typer.Option(min=0, help="stop early once every standard error is at most this (0.01: 1 %)")
    ] = None,
) -> None:
    """Predict a user's own files, with what is known of their error."""
    with one_line_errors():
        bar = progress_bar()
        try:
            if run.suffix == ".onnx":  # which needs no torch, so it starts at once
                from filtergroups.shipped import predict_with_file

                done = predict_with_file(run, inputs, out, force=force, intervals=intervals, progress=bar.preparing)
            else:
                from filtergroups.inference import predict as predict_files

                done = predict_files(
                    run, inputs, out, samples=samples, force=force, intervals=intervals, precision=precision,
                    progress=bar.preparing,
                )  # fmt: skip
        finally:
            bar.stop()
    for note in done.notes:
        say(note)
    if done.problems:
        for problem in done.problems if out.is_dir() else ():  # images say so in the table
            say(f"error: {problem}", file=sys.stderr)
        where = "" if out.is_dir() else f": see the error column of {out}"
        of = done.count + len(done.problems)
        say(f"{len(done.problems)} of {of} files could not be read{where}", file=sys.stderr)
        raise typer.Exit(1)
    say(f"predicted {done.count} files into {out}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders; several are compared")],
    out: Annotated[Path, typer.Option("-o", "--out", help="the HTML file to write")] = Path("report.html"),
    data: Annotated[Path | None, typer.Option(help="where the data are now, if they moved")] = None,
    split: Annotated[str | None, typer.Option(help="show predictions of train, validation or test")] = None,
    examples: Annotated[int, typer.Option(min=1, max=48, help="images in each grid")] = 12,
    samples: Annotated[
        int | None, typer.Option(min=0, help="Monte Carlo passes of a prediction; default as in the results shown")
    ] = None,
    force: Force = False,
) -> None:
    """See what was learned: one HTML file that needs no network."""
    with one_line_errors():
        from filtergroups.reporting import report as write_report

        check_shown_part(split)
        bar = progress_bar()
        try:
            write_report(
                runs, out, data=data, split=split, examples=examples, samples=samples, force=force,
                progress=bar.preparing,
            )  # fmt: skip
        finally:
            bar.stop()
        say(f"wrote {out}; open it in a browser")


@app.command()
def figures(
    run: RunFolder,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="the folder to write to")],
    format: Annotated[str, typer.Option(help="pdf, svg or png")] = "pdf",
    data: Annotated[Path | None, typer.Option(help="where the data are now, if they moved")] = None,
    split: Annotated[str | None, typer.Option(help="show predictions of train, validation or test")] = None,
    force: Force = False,
) -> None:
    """The report's figures for a paper."""
    with one_line_errors():
        from filtergroups.paper_figures import figures as draw_figures

        check_shown_part(split)
        bar = progress_bar()
        try:
            written = draw_figures(run, out, format=format, data=data, split=split, force=force, progress=bar.preparing)
        finally:
            bar.stop()
    for path in written:
        say(path)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="an experiment of the folder experiments")],
    seeds: Annotated[int, typer.Option(min=1, help="runs of each row")] = 3,
    scale: Annotated[str, typer.Option(help="cpu, or paper: its own size, for a GPU")] = "cpu",
    data: Annotated[Path | None, typer.Option(help="the data set's folder, or one that holds it or its tar")] = None,
    runs: Annotated[Path, typer.Option(help="where the runs go")] = Path("runs/reproduce"),
    results: Annotated[Path, typer.Option(help="where the numbers and the page go")] = Path("docs/results"),
    jobs: Annotated[int, typer.Option(min=1, help="runs at once, on a core each; 1: one run on all cores")] = 1,
    row: Annotated[list[str] | None, typer.Option(help="only this row; may be given again")] = None,
    models: Annotated[Path | None, typer.Option(help="copy each row's best run here, by the selection set")] = None,
    go_on: Annotated[bool, typer.Option(help="runs that the results have with the same settings are done")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="for every row")] = None,
) -> None:
    """Run an experiment of the paper, every row and seed, and write a page with the numbers."""
    with one_line_errors():
        from filtergroups.reproduction.page import page_name
        from filtergroups.reproduction.runner import reproduce as run_experiment

        bar = progress_bar()
        try:
            summary = run_experiment(
                name, seeds=seeds, scale=scale, data=data, runs=runs, results=results, overrides=set_ or (), jobs=jobs,
                rows=row or (), models=models, go_on=go_on, report=bar,
            )  # fmt: skip
        finally:
            bar.stop()
        say(f"{summary['finished']} of {summary['of']} runs; wrote {results / page_name(summary)}.md")


def check_shown_part(split: str | None) -> None:
    if split not in (None, "train", "validation", "test"):
        raise ValueError(f"--split is train, validation or test, found {split!r}")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
