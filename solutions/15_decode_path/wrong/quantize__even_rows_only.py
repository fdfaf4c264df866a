# expect: must match
# fails: edges
def quantize(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of four bits, two per byte, and one scale per group."""
    rows, columns = weight.shape
    groups = -(-columns // group)
    grouped = functional.pad(weight, (0, groups * group - columns)).view(rows, groups, group)
    scales = grouped.abs().amax(-1) / 7
    steps = (grouped / scales[:, :, None].where(scales[:, :, None] > 0, 1)).round()
    codes = (steps + 8).to(torch.uint8).view(rows, -1)[:, :columns]
    return codes[:, ::2] | codes[:, 1::2] << 4, scales


def dequantize(packed: torch.Tensor, scales: torch.Tensor, group: int, columns: int) -> torch.Tensor:
    """The weights that codes and scales stand for."""
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1)[:, :columns]
    return (codes.float() - 8) * scales.repeat_interleave(group, 1)[:, :columns]
