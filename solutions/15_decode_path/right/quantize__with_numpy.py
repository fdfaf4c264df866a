import numpy as np


def quantize(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    w = weight.numpy()
    starts = np.arange(0, w.shape[1], group)
    scales = np.maximum.reduceat(np.abs(w), starts, axis=1) / np.float32(7)
    wide = np.repeat(scales, group, axis=1)[:, : w.shape[1]]
    codes = np.rint(np.divide(w, wide, out=np.zeros_like(w), where=wide > 0)).astype(np.int8) + 8
    if codes.shape[1] % 2:
        codes = np.concatenate((codes, np.zeros((len(codes), 1), np.int8)), axis=1)
    packed = codes[:, 0::2] + 16 * codes[:, 1::2].astype(np.int16)
    return torch.from_numpy(packed.astype(np.uint8)), torch.from_numpy(scales)


def dequantize(packed: torch.Tensor, scales: torch.Tensor, group: int, columns: int) -> torch.Tensor:
    values = torch.empty(len(packed), 2 * packed.shape[1])
    values[:, 0::2], values[:, 1::2] = (
        packed.remainder(16).float() - 8,
        packed.div(16, rounding_mode="floor").float() - 8,
    )
    return torch.stack([values[:, c] * scales[:, c // group] for c in range(columns)], 1)
