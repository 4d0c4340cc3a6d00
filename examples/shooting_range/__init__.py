"""A shooting range with a target that moves by chance, and the leader board that counts its hits.

The example of *Exactly once* by Tomek Masternak and Szymon Pobiega. A shot that is handled twice
must have one outcome, although the target has moved in between, and although where to is drawn by
lot.
"""

from shooting_range.component import leader_board, shooting_range

__all__ = ["leader_board", "shooting_range"]
