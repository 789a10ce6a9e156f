"""What nodes log reaches the log of the Prefect run, and what a user did wrong is logged as a sentence there.

Imports prefect: import it inside functions.
"""

from __future__ import annotations

import logging

from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import MissingContextError
from prefect.logging import get_logger, get_run_logger
from prefect.logging.handlers import PrefectConsoleHandler

from ragbraid.dsl.plan import Plan
from ragbraid.dsl.walk import node_steps
from ragbraid.flows.prefect_api import API_FAILURES
from ragbraid.flows.project import LOCAL_MODULES
from ragbraid.flows.secrets import redact
from ragbraid.registry.errors import RagbraidError


class RunLogHandler(logging.Handler):
    """Hands records on to the logger of the task run or flow run that they were logged in; drops them elsewhere."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record's message again, in the run."""
        if TaskRunContext.get() is None and FlowRunContext.get() is None:
            return
        try:
            logger = get_run_logger()
        except MissingContextError:
            return
        logger.log(record.levelno, "%s", redact(record.getMessage()), exc_info=record.exc_info)
        setattr(record, _HANDED_ON, True)


_HANDED_ON = "ragbraid_handed_on"


def _is_not_handed_on(record: logging.LogRecord) -> bool:
    """Keep a record off the console that stands there already, as the run's own."""
    return not hasattr(record, _HANDED_ON)


_NOT_KEPT = "An error was encountered while committing transaction"
"""What Prefect logs, with a traceback, where it cannot write a result."""


class _SentencesOnly(logging.Filter):
    """Makes a record about one of our own errors, or a lost API, a sentence with what to do and no traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and record.msg.startswith(_FAILED_STEP):
            return False  # the state that the step ends in is logged too, and says it in fewer words
        if isinstance(record.args, tuple):  # a step that is tried again
            record.args = tuple(arg.message if isinstance(arg, State) else arg for arg in record.args)
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (RagbraidError, *API_FAILURES)):
            record.exc_info = None
            record.exc_text = None
            if hint := getattr(error, "hint", None):
                record.msg, record.args = f"{record.getMessage()}\nhint: {redact(hint)}", ()
        elif error is not None and str(record.msg).startswith(_NOT_KEPT):
            record.exc_info = None
            record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg = (
                "the result of this step could not be kept (%s: %s): the run goes on, and a retry of it does the "
            )
            record.msg += "step again; make that place writable, or name another one by PREFECT_LOCAL_STORAGE_PATH"
            record.args = (type(error).__name__, redact(str(error)))
        return True


_FAILED_STEP = "Task run failed with state: "
_handler = RunLogHandler()
_sentences_only = _SentencesOnly()


def forward_node_logs(plan: Plan) -> None:
    """Have everything that the plan's nodes log at INFO and above appear in the run's log; safe to call again."""
    for name in {"ragbraid", *(_logger_of(step.node.function.__module__) for step in node_steps(plan.body))}:
        logger = logging.getLogger(name)
        if _handler not in logger.handlers:
            logger.addHandler(_handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PrefectConsoleHandler):
            handler.addFilter(_is_not_handed_on)
    log_errors_as_sentences()


def log_errors_as_sentences() -> None:
    """Have Prefect log our own errors, and a lost API, without a traceback; safe to call again."""
    for name in ("flow_runs", "task_runs"):
        get_logger(name).addFilter(_sentences_only)


def _logger_of(module: str) -> str:
    """Return the logger that covers a node's module: a local module's own, else its whole package's."""
    return module if module.startswith(LOCAL_MODULES) else module.partition(".")[0]
