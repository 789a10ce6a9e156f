"""The `resources` section: providers, their settings, and secrets by reference only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ragbraid.dsl.expressions import EnvReference, ExpressionProblem, PlainText, Template, names, parse_value
from ragbraid.dsl.plan import ResourceBinding
from ragbraid.dsl.report import Report
from ragbraid.dsl.source_nodes import Entry, Node, ScalarNode, to_python
from ragbraid.dsl.syntax import ResourceDecl
from ragbraid.dsl.values import bind_literal
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.providers import ROLES, ResourceProvider, ResourceSetting
from ragbraid.registry.suggest import did_you_mean, nearest


def read_resources(
    decls: Iterable[ResourceDecl], catalogue: Catalogue, report: Report
) -> dict[str, tuple[ResourceBinding, str]]:
    """Return every declared resource with its role, by name."""
    bound: dict[str, tuple[ResourceBinding, str]] = {}
    for decl in decls:
        provider = _find_provider(decl, catalogue, report)
        if provider is None:
            continue
        name = decl.name.text
        if name in ROLES and provider.role != name:
            hint = f"call it `{provider.role}`, or choose a provider of `{name}`"
            message = f"`{provider.name}` provides `{provider.role}`, not `{name}`"
            report.error("RB203", message, decl.use.span, hint)
            continue
        settings = _read_settings(decl, provider, report)
        bound[name] = (ResourceBinding(name, provider.name, settings, decl.name.span), provider.role)
    return bound


def _find_provider(decl: ResourceDecl, catalogue: Catalogue, report: Report) -> ResourceProvider | None:
    name = str(decl.use.value)
    provider = catalogue.find_resource(name)
    if provider is None:
        known = [p.name for p in catalogue.resources()]
        hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
        report.error("RB106", f"no resource provider is called `{name}`", decl.use.span, hint)
    return provider


def _read_settings(decl: ResourceDecl, provider: ResourceProvider, report: Report) -> dict[str, Any]:
    known = {setting.name: setting for setting in provider.settings}
    settings: dict[str, Any] = {}
    for entry in decl.settings:
        setting = known.get(entry.key)
        if setting is None:
            meant = nearest(entry.key, known)
            hint = f"did you mean `{meant}`?" if meant else f"it has {', '.join(f'`{name}`' for name in known)}"
            report.error("RB102", f"`{provider.name}` has no setting `{entry.key}`", entry.key_span, hint)
            setting = known.get(meant or "")
        if setting is not None:
            settings[setting.name] = _read_setting(setting, entry, provider, report)
    for setting in provider.settings:
        if setting.required and setting.name not in settings:
            message = f"`{decl.name.text}` has no `{setting.name}`, which `{provider.name}` needs"
            report.error("RB011", message, decl.name.span, f"write `{setting.name}: ...` under `{decl.name.text}`")
    return settings


def _read_setting(setting: ResourceSetting, entry: Entry, provider: ResourceProvider, report: Report) -> Any:
    node = entry.value
    parsed = parse_value(node.value) if isinstance(node, ScalarNode) and isinstance(node.value, str) else None
    if isinstance(parsed, EnvReference):
        return node.value  # type: ignore[union-attr]
    if parsed is not None and not isinstance(parsed, PlainText):
        _report_dynamic(setting, node, parsed, report)
        return None
    if setting.secret:
        hint = (
            f"write `{setting.name}: ${{env.NAME}}` or `${{secret.NAME}}`, which are read when the resource is opened"
        )
        report.error("RB404", f"`{setting.name}` is a secret and does not belong into a file", node.span, hint)
        return None
    bound = bind_literal(node, setting.type, f"`{setting.name}` of `{provider.name}`", report)
    return getattr(bound.value, "value", to_python(node))


def _report_dynamic(setting: ResourceSetting, node: Node, parsed: Any, report: Report) -> None:
    """Report a value that depends on the flow, or that mixes text with a variable."""
    if isinstance(parsed, ExpressionProblem):
        report.error(parsed.code, parsed.message, node.span, parsed.hint)
        return
    if isinstance(parsed, Template) and not names(parsed):
        message = f"a variable must be the whole value of `{setting.name}`"
        report.error("RB403", message, node.span, "put the whole text into the variable")
        return
    uses = names(parsed)
    name = (uses[0].path[-1] if uses[0].path else uses[0].root) if uses else "NAME"
    hint = f"a resource is opened before the run; an environment variable is written `${{env.{name}}}`"
    report.error("RB403", f"`{setting.name}` of a resource cannot depend on the flow", node.span, hint)
