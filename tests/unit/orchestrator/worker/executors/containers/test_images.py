"""Which file tells that the images of a store have changed."""

from pathlib import Path

from solstice_orchestrator.worker.executors.containers.images import index_of


def test_a_store_of_its_own_images_lists_them_in_one_file() -> None:
    store = {
        "graphRoot": "/store",
        "graphDriverName": "overlay",
        "graphOptions": {"overlay.mountopt": "nodev"},
    }
    assert index_of(store) == Path("/store/overlay-images/images.json")


def test_beside_images_of_other_stores_no_file_tells_of_all() -> None:
    store = {
        "graphRoot": "/store",
        "graphDriverName": "overlay",
        "graphOptions": {"overlay.imagestore": "/shared"},
    }
    assert index_of(store) is None
