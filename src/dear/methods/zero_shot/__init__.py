"""Declaration of zero-shot CLIP; it has no settings."""

from dear.methods.declaration import Declaration

METHOD = Declaration(
    "zero-shot", "2103.00020", "ZeroShot", trains=None, cheap=True, image="features", text="features"
)
