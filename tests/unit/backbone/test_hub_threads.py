"""Threads of one process that ask the hub at the same time."""

import threading

from huggingface_hub import file_download

from dear.backbone.hub_answers import checked_answers

LONG = 60


def test_one_thread_at_a_time_changes_the_client() -> None:
    """The checks of the first stayed for the process, and the second had none."""
    before = file_download.get_hf_file_metadata
    inside, leave = threading.Event(), threading.Event()
    order = list[str]()

    def first() -> None:
        with checked_answers("a", "json_bytes"):
            inside.set()
            assert leave.wait(LONG)
            order.append("first")

    def second() -> None:
        with checked_answers("b", "json_bytes"):
            order.append("second")

    threads = [threading.Thread(target=work) for work in (first, second)]
    threads[0].start()
    assert inside.wait(LONG)
    threads[1].start()
    threads[1].join(0.5)  # in which it would have ended
    leave.set()
    for thread in threads:
        thread.join(LONG)
    assert order == ["first", "second"]
    assert file_download.get_hf_file_metadata is before
