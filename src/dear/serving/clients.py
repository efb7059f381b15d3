"""Who asks: a client, its units of work, and its turns beside those of other clients."""

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass

from dear.serving.limits import Limits, Rate, Refused, work_of_picture
from dear.serving.queues import Places


@dataclass(frozen=True)
class Client:
    """The client of a request, known by its address."""

    address: str
    clients: "Clients"

    def charge(self, work: float) -> None:
        """Take units of work. Raises Refused (429)."""
        self.clients.rate.take(self.address, work)

    def charge_picture(self, pixels: int) -> None:
        """Take the units of a picture's pixels. Raises Refused (429)."""
        self.charge(work_of_picture(pixels))

    def decoding(self) -> AbstractAsyncContextManager[None]:
        """Wait for a place to decode a picture, and keep it within."""
        return self.clients.decoding.place(self.address)

    def decoding_thumbnail(self) -> AbstractAsyncContextManager[None]:
        """The same for a picture of the index, before `decoding`."""
        return self.clients.decoding_thumbnails.place(self.address)

    def computing(self) -> AbstractAsyncContextManager[None]:
        """Wait for a place for work of the model, and keep it within."""
        return self.clients.computing.place(self.address)

    def scoring(self) -> AbstractAsyncContextManager[None]:
        """The same for the classes of an image, within `computing`: a method may encode them for each."""
        return self.clients.scoring.place(self.address)

    def attending(self) -> AbstractAsyncContextManager[None]:
        """The same for a map of attention, which holds up all other work of the model."""
        return self.clients.attending.place(self.address)

    def searching(self) -> AbstractAsyncContextManager[None]:
        """The same for a search of the index."""
        return self.clients.searching.place(self.address)

    def computing_batch(self) -> AbstractAsyncContextManager[None]:
        """The same for an image of a request of several, before `computing`."""
        return self.clients.computing_batches.place(self.address)


class Clients:
    """All clients of a server. One of them leaves an eighth of the requests in progress to others, unless
    work has no rate, as behind a proxy, whose address stands for all of its clients.
    """

    def __init__(self, limits: Limits, rate: Rate) -> None:
        self.rate = rate
        self.decoding = Places(limits.decoders)
        self.decoding_thumbnails = Places(max(1, limits.decoders - 1))  # one is left for uploads
        self.computing, self.computing_batches = Places(2 * limits.batch), Places(limits.batch)
        self.scoring, self.attending = Places(1), Places(1)
        self.searching, self.parsing = Places(1), Places(1)
        self._most = limits.waiting
        self._most_of_one = limits.waiting - limits.waiting // 8 if limits.rate else limits.waiting
        self._requests = Counter[str]()

    def require_room(self, address: str) -> None:
        """Raise Refused (503) if too many requests are in progress, of this client or of all."""
        if self._requests.total() >= self._most or self._requests[address] >= self._most_of_one:
            raise Refused(503, "the server is busy: try again soon.", {"Retry-After": "2"})

    @contextmanager
    def request(self, address: str) -> Iterator[Client]:
        """A request in progress. Raises Refused (503)."""
        self.require_room(address)
        self._requests[address] += 1
        try:
            yield Client(address, self)
        finally:
            self._requests[address] -= 1
            if not self._requests[address]:
                del self._requests[address]
