"""ResNet against the numbers of the paper, and FLOPs against a closed form written down independently."""

import pytest
import torch
from threeloops.models.resnet import BasicBlock, Bottleneck, ResNet, resnet18, resnet20, resnet50
from torch.utils.flop_counter import FlopCounterMode


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("make", "expected"), [(resnet18, 11_689_512), (resnet50, 25_557_032), (resnet20, 272_474)])
def test_parameter_count_is_the_published_one(make, expected):
    with torch.device("meta"):
        assert parameters(make()) == expected


def multiply_adds(bottleneck, blocks, size, width=64, classes=1000):
    """Multiply-adds of all convolutions and of the classifier, from the table in He et al. 2015."""
    size //= 2
    total = size**2 * width * 3 * 7**2
    size //= 2
    channels = width
    for stage, count in enumerate(blocks):
        narrow = width * 2**stage
        wide = narrow * (4 if bottleneck else 1)
        for index in range(count):
            smaller = size // 2 if stage > 0 and index == 0 else size
            if bottleneck:
                # The stride stands in the 3×3, so the first 1×1 still sees the large image.
                total += size**2 * channels * narrow + smaller**2 * (narrow**2 * 9 + narrow * wide)
            else:
                total += smaller**2 * 9 * (channels * narrow + narrow * wide)
            if channels != wide or smaller != size:
                total += smaller**2 * channels * wide
            channels, size = wide, smaller
    return total + channels * classes


@pytest.mark.parametrize(
    ("make", "bottleneck", "blocks", "published"),
    [(resnet18, False, (2, 2, 2, 2), 1.81e9), (resnet50, True, (3, 4, 6, 3), 4.09e9)],
)
def test_flops_at_224_are_the_closed_form_and_the_published_number(make, bottleneck, blocks, published):
    with torch.device("meta"):
        model, image = make(), torch.empty(1, 3, 224, 224)
    with FlopCounterMode(display=False) as counter:
        model(image)
    expected = multiply_adds(bottleneck, blocks, 224)
    assert counter.get_total_flops() == 2 * expected
    assert expected == pytest.approx(published, rel=3e-3)


def test_a_narrow_resnet50_has_the_parameters_and_multiply_adds_of_its_docstring():
    with torch.device("meta"):
        found = parameters(resnet50(width=16)), round(multiply_adds(True, (3, 4, 6, 3), 224, width=16) / 1e6)
    assert found == (1_993_976, 278)
    assert "1,993,976 parameters and 278 M multiply-adds" in resnet50.__doc__


def test_small_images_pass_a_stem_that_keeps_their_size():
    """The table of He et al. 2015, section 4.2: 32×32 through three stages, 40.8 million multiply-adds."""
    with torch.device("meta"):
        model, image = resnet20(), torch.empty(1, 3, 32, 32)
    shapes = []
    for stage in (model.layer1, model.layer2, model.layer3):
        stage.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape)))
    with FlopCounterMode(display=False) as counter:
        model(image)
    assert shapes == [(1, 16, 32, 32), (1, 32, 16, 16), (1, 64, 8, 8)]
    plain = 32**2 * 9 * (3 * 16 + 6 * 16**2) + 16**2 * 9 * (16 * 32 + 5 * 32**2) + 8**2 * 9 * (32 * 64 + 5 * 64**2)
    shortcuts = 16**2 * 16 * 32 + 8**2 * 32 * 64
    assert counter.get_total_flops() == 2 * (plain + shortcuts + 64 * 10)
    assert plain == pytest.approx(40.8e6, rel=0.01)


def test_it_learns_grey_images_of_8_by_8():
    torch.manual_seed(0)
    model, images = resnet20(channels=1, width=4), torch.randn(16, 1, 8, 8)
    labels = torch.arange(16) % 10
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    first = torch.nn.functional.cross_entropy(model(images), labels).item()
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * first


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
@pytest.mark.parametrize(("batch", "height", "width"), [(1, 32, 32), (3, 33, 47), (2, 1, 1)])
def test_any_image_size_gives_one_score_a_class(block, batch, height, width):
    model = ResNet(block, (1, 1, 1, 1), classes=7, width=4).eval()
    assert model(torch.randn(batch, 3, height, width)).shape == (batch, 7)


def test_stages_halve_the_image_and_double_the_channels():
    with torch.device("meta"):
        model, image = resnet50(), torch.empty(2, 3, 224, 224)
    shapes = []
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        stage.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape)))
    model(image)
    assert shapes == [(2, 256, 56, 56), (2, 512, 28, 28), (2, 1024, 14, 14), (2, 2048, 7, 7)]


def test_evaluation_is_deterministic_and_knows_no_batch():
    torch.manual_seed(0)
    model = ResNet(Bottleneck, (1, 1, 1, 1), classes=5, width=8)
    images = torch.randn(4, 3, 40, 40)
    model(images)  # moves the running statistics away from their initial values
    model.eval()
    together = model(images)
    assert torch.equal(together, model(images))
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_a_block_adds_a_correction_to_its_input():
    block = Bottleneck(16, 4, stride=1).eval()
    torch.nn.init.zeros_(block.bn3.weight)
    x = torch.randn(2, 16, 5, 5)
    assert torch.equal(block(x), x.relu()), "with the correction at zero a block hands its input on"


def test_every_parameter_learns():
    torch.manual_seed(0)
    model = ResNet(BasicBlock, (1, 1, 1, 1), classes=3, width=4)
    torch.nn.functional.cross_entropy(model(torch.randn(4, 3, 64, 64)), torch.tensor([0, 1, 2, 0])).backward()
    without = [name for name, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert without == []


def test_parameters_carry_the_names_of_published_checkpoints():
    with torch.device("meta"):
        names = set(resnet50().state_dict())
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.downsample.0.weight", "layer4.2.bn3.bias", "fc.bias"} <= names
    assert len(names) == 320


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocks": ()}, "blocks = "),
        ({"blocks": (2, 2, 2, 2, 2)}, "blocks = "),
        ({"blocks": (2, 2, 0, 2)}, "blocks = "),
        ({"blocks": (1, 1, 1, 1), "classes": 0}, "classes = 0"),
        ({"blocks": (1, 1, 1, 1), "width": 0}, "width = 0"),
        ({"blocks": (1, 1, 1), "channels": 0}, "channels = 0"),
    ],
)
def test_impossible_models_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        ResNet(BasicBlock, **arguments)
