"""What runs inside the sandbox: standard library only, and nothing of the rest of gradmass.

The host binds this folder into the sandbox and starts ``zygote.main`` there. ``wire`` and ``plain``
are spoken on both sides of the wall.
"""
