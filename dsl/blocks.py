"""The draft of every kind of block."""

from __future__ import annotations

from ragbraid.dsl.block_choice import GateDraft, SwitchDraft
from ragbraid.dsl.block_loop import LoopDraft
from ragbraid.dsl.block_map import GroupDraft, MapDraft
from ragbraid.dsl.draft import BlockDraft, Draft
from ragbraid.dsl.syntax import GateDecl, GroupDecl, LoopDecl, MapDecl, SwitchDecl
from ragbraid.dsl.values import Context


def make_block(draft: Draft, around: Context) -> BlockDraft:
    """Return the draft of the block that stands for a node; `around` is the scope that it stands in."""
    match draft.decl.block:
        case LoopDecl() as decl:
            return LoopDraft(draft, decl, around, make_block)
        case MapDecl() as decl:
            return MapDraft(draft, decl, around, make_block)
        case SwitchDecl() as decl:
            return SwitchDraft(draft, decl, around, make_block)
        case GateDecl() as decl:
            return GateDraft(draft, decl, around, make_block)
        case GroupDecl() as decl:
            return GroupDraft(draft, decl, around, make_block)
        case None:
            raise AssertionError("only blocks are drafted here")
