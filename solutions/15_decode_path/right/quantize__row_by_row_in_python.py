def quantize(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    scales, packed = [], []
    for row in weight:
        parts = row.split(group)
        scales.append([float(part.abs().max() / 7) for part in parts])
        codes = []
        for part, scale in zip(parts, scales[-1], strict=True):
            codes += [8 + (round(value / scale) if scale else 0) for value in part.tolist()]
        codes += [0] * (len(codes) % 2)
        packed.append([codes[i] + 16 * codes[i + 1] for i in range(0, len(codes), 2)])
    return torch.tensor(packed, dtype=torch.uint8), torch.tensor(scales)


def dequantize(packed: torch.Tensor, scales: torch.Tensor, group: int, columns: int) -> torch.Tensor:
    rows = []
    for bytes_, own in zip(packed.tolist(), scales.tolist(), strict=True):
        codes = [code for byte in bytes_ for code in (byte % 16, byte // 16)][:columns]
        rows.append([(code - 8) * own[column // group] for column, code in enumerate(codes)])
    return torch.tensor(rows)
