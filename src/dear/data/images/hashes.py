"""Short hashes of images, by which a bundle knows again those that it was fitted on."""

import hashlib
from collections.abc import Iterable

from dear.data.dataset import Images
from dear.data.fewshot import Subset
from dear.data.images.photos import LoadedImages, in_parallel

HASH_BYTES = 8  # among a million images against another million, one in 10^7 draws has a false match


def image_hashes(images: Images, indices: Iterable[int] | None = None) -> list[bytes]:
    """BLAKE2b of the bytes of each image's file, or of the pixels of an image in memory; of all images or of
    those at ``indices``. Empty for the Attribute World, whose images are neither. A picture that was saved
    again counts as another. Raises DataError for an unreadable image.
    """
    numbers = [*(range(len(images)) if indices is None else indices)]
    while isinstance(images, Subset):
        numbers, images = images.indices[numbers].tolist(), images.images
    if not isinstance(images, LoadedImages):
        return []
    content = images.content
    return in_parallel(
        lambda index: hashlib.blake2b(content(index), digest_size=HASH_BYTES).digest(),
        numbers,
        images.threads,
    )
