"""Routes of the admin API: what a plugin hands over to have it served, documented and audited.

Models are pydantic's; OpenAPI is made of them (`docs/admin-api.md`). Each is built, and its
source read for what the docstrings of its fields say, when it is used first: a node starts sooner.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lakemq.broker_core.api.access import ANONYMOUS, NO_CONTEXT, AccessContext, Operation, Principal

LIMIT_MAX: Final = 500
"""Rows of one page."""
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")


def _flag(value: object) -> object:
    """A query has texts: `true` and `false` alone are flags."""
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _whole(value: object) -> object:
    """`72.0` is no whole number, nor is a text with blanks or digits of other scripts."""
    if isinstance(value, str) and not (value.isascii() and value.removeprefix("-").isdecimal()):
        raise ValueError("it takes a whole number")
    return int(value) if isinstance(value, str) else value


Flag = Annotated[bool, BeforeValidator(_flag), Field(strict=True)]
"""A parameter that is `true` or `false`."""
Whole = Annotated[int, BeforeValidator(_whole)]
"""A parameter that is a whole number."""
TimeMs = Annotated[Whole, Field(ge=0, le=2**53)]
"""A parameter: ms since 1970, UTC."""


class Query(BaseModel):
    """Parameters of a request's query; others are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class OwnQuery(Query):
    """Of what is a node's own."""

    node: str = Field(default="", max_length=63)
    """Node whose state is meant; empty: the node that is asked."""


ALL_NODES: Final = "*"


class EveryQuery(OwnQuery):
    """Of a change that all nodes can be asked for at once; it answers `{"nodes": [...]}` then."""

    node: str = Field(default="", max_length=63)
    """Node that shall do it; empty: the node that is asked; `*`: every node."""


class ChangeQuery(Query):
    """Of a change that can be tried first."""

    dry_run: Flag = False
    """Check everything and say what would happen, and change nothing."""


class OwnChangeQuery(OwnQuery, ChangeQuery):
    """The same of what is a node's own."""


class PageQuery(Query):
    """Parameters of a list."""

    limit: Whole = Field(default=100, ge=1, le=LIMIT_MAX)
    """Most rows of this page."""
    cursor: str = Field(default="", max_length=8192, pattern="^[A-Za-z0-9_-]*$")
    """`meta.next` of the page before; empty: the first page."""
    q: str = Field(default="", max_length=256)
    """Only what has this text in its name, in capitals or not."""
    sort: str = ""
    """Field to sort by; with `-` before it, greatest first."""
    fields: str = ""
    """Only these fields, by commas."""


class OwnPageQuery(PageQuery):
    """Of a list of what is each node's own."""

    node: str = Field(default="", max_length=63)
    """Only what is on this node; empty: of all nodes."""


class Body(BaseModel):
    """A JSON object that comes with a request: unknown fields and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class Answer(BaseModel):
    """A JSON object that is answered."""

    model_config = ConfigDict(frozen=True, defer_build=True)


class NoQuery(Query):
    """No parameters."""


class Need(NamedTuple):
    """The right that a caller needs."""

    operation: Operation
    kind: str = "cluster"
    """Kind of the resource."""
    path: str = ""
    """Name in the route's path that stands for the resource's; empty: it is the cluster, or the
    handler looks itself, resource by resource (kind `each`)."""


EACH: Final = Need(Operation.DESCRIBE, "each")
"""Any caller who is let in: the handler shows what it may see."""


async def _not_asked(path: str, query: Mapping[str, str]) -> Any:
    raise NotImplementedError("this request was not made by an admin API")


@dataclass(frozen=True)
class AdminRequest:
    """A request to the admin API, its parts decoded and checked."""

    path: Mapping[str, str]
    """What stood in place of the names in the route's path."""
    query: Mapping[str, str]
    body: Mapping[str, object] = field(default_factory=dict)
    """The JSON object that came with it, for routes without a model; empty where none came."""
    principal: Principal = ANONYMOUS
    context: AccessContext = NO_CONTEXT
    asked: Query = field(default_factory=NoQuery)
    """The query, as the route's model has it."""
    given: Body | None = None
    """The body, as the route's model has it; None: the route takes none."""
    raw: bytes = b""
    """The body as it came."""
    content_type: str = ""
    ask: Callable[[str, Mapping[str, str]], Awaitable[Any]] = _not_asked
    """Asks the admin API something else for the same caller: (path behind `/api/v1/`, query) -> the
    answer's JSON. What belongs to other nodes is asked of them. Raises LakeMQError."""
    notes: dict[str, object] = field(default_factory=dict)
    """What the handler tells the audit log: `before` and `after`, small values for JSON."""


AskedT = TypeVar("AskedT", bound=BaseModel)


def expect(found: object, kind: type[AskedT]) -> AskedT:
    """`found`, which the route's model has made one of `kind`."""
    assert isinstance(found, kind), type(found)
    return found


OCTETS: Final = "application/octet-stream"


class Download(NamedTuple):
    """An answer that is sent as it is made, in place of JSON."""

    name: str
    """Of the file."""
    size: int
    """Of all (bytes)."""
    content: AsyncGenerator[bytes]
    """Closed when it is sent or given up."""


@dataclass(frozen=True)
class AdminRoute:
    """One thing that the admin API can be asked."""

    method: str
    """One of `METHODS`; all but `GET` change something and are audited."""
    path: str
    """Behind `/api/v1/`, like `mqtt/clients/{client_id}`."""
    answer: Callable[[AdminRequest], Awaitable[object]]
    """Gives one of `gives`, or a value for JSON. A LakeMQError becomes a problem (RFC 9457)."""
    gives: type[BaseModel] | None = None
    """Model of the answer; None: some JSON."""
    query: type[Query] | None = None
    """None: any parameters, unchecked, for routes that read `AdminRequest.query`."""
    body: type[Body] | None = None
    """None: any JSON object, or nothing."""
    need: Need | None = None
    """None: `GET`: the caller may DESCRIBE the cluster; otherwise: it may ALTER it."""
    own: bool = False
    """It is about a state of one node's own, which the parameter `node` names."""
    owner: Callable[[AdminRequest], str] | None = None
    """Names the node that shall carry it out, like the leader of a partition; empty: this one."""
    status: int = 200
    """Of the answer; 204: without a body."""
    summary: str = ""
    """A sentence for the documentation; empty: the first of `answer`'s docstring."""
    audited: bool = True
    """False: a method other than `GET` that changes no setting and no state of an operator's."""
    takes: tuple[str, ...] = ("application/json",)
    """Content types of the body; empty: none was named."""
    download: bool = False
    """It answers a `Download`, is carried out by the node that is asked, and repeated freely."""
    tagged: bool = False
    """`GET`: the answer has an entity tag (RFC 9110, 8.8.3). Otherwise `If-Match` is compared with
    the tag that a `GET` of the same path would have now; a `PATCH` answers as that `GET` would."""
    described: bool = True
    """False: it is of an API that others have specified, and is left out of OpenAPI."""


ItemT = TypeVar("ItemT")
SortKey = str | int | float | None


def _keep_all(item: Any, request: AdminRequest) -> bool:
    return True


@dataclass(frozen=True)
class AdminListing(Generic[ItemT]):
    """A list that the admin API serves page by page. Only the rows of a page are made."""

    path: str
    gives: type[BaseModel]
    """Model of a row."""
    items: Callable[[AdminRequest], Awaitable[Sequence[ItemT]]]
    """A snapshot of all; cheap, since it is taken for each page."""
    rows: Callable[[Sequence[ItemT], AdminRequest], Awaitable[Sequence[BaseModel | None]]]
    """Rows of the items of a page, in their order; None: it has gone meanwhile."""
    identity: Callable[[ItemT], str]
    """What tells items apart; `q` looks in it."""
    sorts: Mapping[str, Callable[[ItemT], SortKey]]
    """Fields that it can be sorted by, the first one by default."""
    keep: Callable[[ItemT, AdminRequest], bool] = _keep_all
    """Whether the caller may see an item, and asked for such ones."""
    query: type[PageQuery] = PageQuery
    need: Need | None = None
    own: bool = False
    """Each node has items of its own: all nodes are asked, and their rows merged. `query` is an
    `OwnPageQuery` then."""
    summary: str = ""
    descending: bool = False
    """By default the greatest come first."""


AnyRoute = AdminRoute | AdminListing[Any]


@runtime_checkable
class Administered(Protocol):
    """A listener that adds routes to the admin API."""

    def admin_routes(self) -> Sequence[AnyRoute]:
        """The routes; asked for once, after `start`."""
