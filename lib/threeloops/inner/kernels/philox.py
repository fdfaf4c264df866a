"""Philox 4×32-10: a tile of random words in a kernel, and the same words in PyTorch, bit for bit.

Source: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (2011).
A counter-based generator is a block cipher on a counter: ten rounds of multiplying and mixing turn (seed, counter) into
four independent words of 32 bits. There is no state to keep, share or advance: whoever knows the seed draws again.
"""

import torch
import triton
import triton.language as tl

ROUNDS = 10
_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


@triton.jit
def random_tile(seed, first_row, first_column, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """ROWS × COLUMNS random numbers from 0 up to 2¹⁶ (int32) for the tile that begins there.

    A call of Philox yields eight of them: element (row, column) takes number column % 8 of the counter
    row·⌈columns / 8⌉ + column // 8, the same whatever the tile. `first_column` is a multiple of 8; `first_row` is an
    int64, since a counter may exceed 32 bits.
    """
    eighth = first_column // 8 + tl.arange(0, COLUMNS // 8)[None, :]
    counter = (first_row + tl.arange(0, ROWS)[:, None]) * ((columns + 7) // 8) + eighth
    w0, w1, w2, w3 = tl.randint4x(seed, counter)
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [ROWS, COLUMNS // 2])
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), [ROWS, COLUMNS]).to(tl.int32)


def random_matrix(seed: int, rows: int, columns: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """What `random_tile` draws for the whole matrix: (rows, columns) int32."""
    eighths = (columns + 7) // 8
    counter = torch.arange(rows * eighths, device=device).reshape(rows, eighths)
    words = torch.stack(philox(seed, counter), dim=-1)
    numbers = torch.stack((words & 0xFFFF, words >> 16), dim=-1)
    return numbers.reshape(rows, 8 * eighths)[:, :columns].to(torch.int32)


def philox(seed: int, counter: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Four tensors of words, 0 ≤ word < 2³², as int64 of the shape of `counter` (int64, at least 0).

    They are what `tl.randint4x(seed, counter)` gives. int64 products wrap without harm: the low word of a wrapped
    product is right, and so is the high word once the sign's copies are masked away.
    """
    words = [counter & _WORD, (counter >> 32) & _WORD, torch.zeros_like(counter), torch.zeros_like(counter)]
    keys = [seed & _WORD, (seed >> 32) & _WORD]
    for _ in range(ROUNDS):
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            high(second) ^ words[1] ^ keys[0],
            second & _WORD,
            high(first) ^ words[3] ^ keys[1],
            first & _WORD,
        ]
        keys = [(key + step) & _WORD for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return tuple(words)


def high(product: torch.Tensor) -> torch.Tensor:
    return (product >> 32) & _WORD
