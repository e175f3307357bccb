"""MNIST and CIFAR-10 in their public layouts, made up and real."""

import gzip

import numpy as np
import pytest
import torch

from statespan.data import load
from statespan.data.augment import Shift, Warp
from statespan.data.base import Batch
from statespan.data.formats.idx import read_idx
from statespan.papers.datasets.images import bit_reversal, crop_and_flip, luma
from tests.data.real import real


def write_idx(path, array):
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    data = b"\0\0\x08" + bytes([array.ndim]) + sizes + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.fixture
def mnist(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "mnist").mkdir()
    for name, n in (("train", 50), ("t10k", 7)):
        images = rng.integers(0, 256, (n, 28, 28), np.uint8)
        images[:, 0, 0] = np.arange(n)  # the image's number
        write_idx(tmp_path / "mnist" / f"{name}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / "mnist" / f"{name}-labels-idx1-ubyte", np.arange(n, dtype=np.uint8) % 10)
    return tmp_path


def test_smnist_has_every_image_once_and_the_whole_test_set(mnist):
    data = load("smnist", mnist)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [45, 5, 7]
    seen = [part.batch(list(range(len(part)))) for part in (data.train, data.valid, data.test)]
    numbers = [(255 * batch.x[:, 0, 0]).round().int() for batch in seen]
    assert sorted(torch.cat(numbers[:2]).tolist()) == list(range(50))
    assert numbers[2].tolist() == list(range(7))
    for batch, number in zip(seen, numbers):
        assert batch.y.tolist() == [n % 10 for n in number.tolist()]
        assert batch.x.shape[1:] == (784, 1)
        assert 0.99 < batch.x.max() <= 1.0
        assert batch.x.min() == 0.0


def test_pmnist_is_smnist_in_bit_reversed_order(mnist):
    order = bit_reversal(784)
    assert sorted(order.tolist()) == list(range(784))
    assert order[:6].tolist() == [0, 512, 256, 768, 128, 640]
    plain, permuted = (load(name, mnist).test.batch([3]).x[0, :, 0] for name in ("smnist", "pmnist"))
    assert torch.equal(permuted, plain[torch.from_numpy(order)])


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\x08", b"\0\0\x0d\x01\0\0\0\1x", b"\0\0\x08\x01\0\0\0\2x", b"\0\0\x08\x03\0\0", b"no idx file"]
)
def test_damaged_idx_files_are_named(tmp_path, data):
    for name, content in (("a", data), ("a.gz", gzip.compress(data)), ("b.gz", data or b"\x1f")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            read_idx(tmp_path / name)


@pytest.fixture
def cifar(tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for i, name in enumerate((*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")):
        records = rng.integers(0, 256, (20, 3073), np.uint8)
        records[:, 0] = np.arange(20) % 10
        records[:, 1] = 20 * i + np.arange(20)  # red of the first pixel: the image's number
        records.tofile(folder / f"{name}.bin")
    return tmp_path


def test_scifar_standardises_colours_and_keeps_every_image(cifar):
    data = load("scifar", cifar)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [90, 10, 20]
    batches = [part.batch(list(range(len(part)))) for part in (data.train, data.valid, data.test)]
    red = [((b.x[:, 0, 0] * 0.247 + 0.4914) * 255).round().int() for b in batches]
    assert sorted(torch.cat(red[:2]).tolist()) == list(range(100))
    assert red[2].tolist() == list(range(100, 120))
    raw = np.fromfile(cifar / "cifar10/cifar-10-batches-bin/test_batch.bin", np.uint8).reshape(20, 3073)
    blue = (batches[2].x[5, :, 2] * 0.261 + 0.4465) * 255
    assert blue.numpy() == pytest.approx(raw[5, 1 + 2048 :].astype(float), abs=1e-3)
    assert data.augment is None


def test_image_is_gray_as_pillow_makes_it(cifar):
    image = pytest.importorskip("PIL.Image")
    rgb = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    assert (luma(rgb) == np.asarray(image.fromarray(rgb).convert("L"))).all()
    x = load("image", cifar).test.batch([0]).x
    assert x.shape == (1, 1024, 1)
    raw = np.fromfile(cifar / "cifar10/cifar-10-batches-bin/test_batch.bin", np.uint8)[1:3073].reshape(3, 1024).T
    assert (x[0, :, 0] * 61 + 122.6).numpy() == pytest.approx(luma(raw).astype(float), abs=1e-3)


def test_density_tokens_are_shifted_and_know_their_channel(cifar):
    data = load("cifar-density", cifar)
    assert (data.info.vocabulary, data.info.d_output, data.info.length) == (769, 256, 3072)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [98, 2, 20]
    batch = data.test.batch([4])
    raw = np.fromfile(cifar / "cifar10/cifar-10-batches-bin/test_batch.bin", np.uint8).reshape(20, 3073)[4, 1:]
    assert batch.y[0, :6].tolist() == [raw[0], raw[1024], raw[2048], raw[1], raw[1025], raw[2049]]
    assert batch.x[0, :4].tolist() == [0, 1 + int(raw[0]), 257 + int(raw[1024]), 513 + int(raw[2048])]
    assert batch.x.max() <= 768


def test_augmentation_shifts_by_up_to_4_mirrors_and_flips():
    x = torch.arange(1024.0).reshape(1, 1024, 1).expand(4000, 1024, 1)
    batch = Batch(x, torch.zeros(4000))
    out = crop_and_flip(batch, torch.Generator().manual_seed(0)).x.reshape(4000, 32, 32)
    row, column = (out[:, 16, 16].int() // 32), (out[:, 16, 16].int() % 32)
    assert sorted(set((row - 16).tolist())) == list(range(-4, 5))
    flipped = out[:, 16, 17] < out[:, 16, 16]
    assert flipped.float().mean() == pytest.approx(0.5, abs=0.03)
    assert sorted(set((column[~flipped] - 16).tolist())) == list(range(-4, 5))
    shifted = out[(row == 20) & (column == 16) & ~flipped][0]  # down by 4: the last rows mirrored
    assert (shifted[:, 0].int() // 32).tolist() == [*range(4, 32), 31, 30, 29, 28]
    again = crop_and_flip(batch, torch.Generator().manual_seed(0)).x.reshape(4000, 32, 32)
    assert torch.equal(out, again)


@pytest.mark.parametrize(("name", "order"), [("smnist", np.arange(784)), ("pmnist", bit_reversal(784))])
def test_mnist_is_shifted_or_warped_only_if_asked(mnist, name, order):
    order = tuple(order.tolist())
    wanted = [({}, None), ({"augment": True}, Shift(order)), ({"warp": True}, Warp(order))]
    for options, augment in [*wanted, ({"augment": True, "warp": True}, Warp(order))]:
        data = load(name, mnist, **options)
        assert data.augment == augment
        for part in ("train", "valid", "test"):  # what is asked for comes on top of the batches
            assert torch.equal(getattr(data, part).batch([0]).x, getattr(load(name, mnist), part).batch([0]).x)


def test_scifar_offers_augmentation_only_if_asked(cifar):
    data = load("scifar", cifar, augment=True)
    batch = data.train.batch([0, 1])
    assert data.augment(batch, torch.Generator().manual_seed(1)).x.shape == batch.x.shape
    assert torch.equal(data.valid.batch([0]).x, load("scifar", cifar).valid.batch([0]).x)


def test_cifar_files_of_another_size_are_named(cifar):
    path = cifar / "cifar10/cifar-10-batches-bin/data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_3\.bin"):
        load("scifar", cifar)


def test_digits_come_with_scikit_learn(tmp_path):
    pytest.importorskip("sklearn")
    data = load("digits", tmp_path)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [1294, 144, 359]
    assert data.train.batch([0]).x.shape == (1, 64, 1)
    half = load("digits", tmp_path, subsample=2)
    assert torch.equal(half.test.batch([7]).x, data.test.batch([7]).x[:, ::2])
    assert half.info.length == 32


@pytest.mark.real_data
def test_real_mnist(tmp_path):
    data = load("smnist", real(tmp_path, "mnist"))
    assert [len(part) for part in (data.train, data.valid, data.test)] == [54_000, 6_000, 10_000]
    assert data.test.arrays["y"][:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    x = np.concatenate([data.train.arrays["x"], data.valid.arrays["x"]])
    assert x.mean(dtype=np.float64) / 255 == pytest.approx(0.1306604762738, abs=1e-9)


@pytest.mark.real_data
def test_real_cifar(tmp_path):
    data = load("scifar", real(tmp_path, "cifar10"))
    assert [len(part) for part in (data.train, data.valid, data.test)] == [45_000, 5_000, 10_000]
    assert data.test.arrays["y"][:5].tolist() == [3, 8, 8, 0, 6]
    assert np.bincount(data.test.arrays["y"]).tolist() == [1000] * 10
    x = data.test.batch(list(range(0, 10_000, 10))).x
    assert x.mean((0, 1)).abs().max() < 0.06
    assert (x.std((0, 1)) - 1).abs().max() < 0.05


def test_mnist_density(mnist):
    data = load("mnist-density", mnist, valid=0.1)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [45, 5, 7]
    info = data.info
    assert (info.task, info.length, info.vocabulary, info.d_output) == ("density", 784, 257, 256)
    batch, pixels = data.test.batch([3, 4]), load("smnist", mnist).test.batch([3, 4]).x[..., 0]
    assert torch.equal(batch.y, (255 * pixels).round().long())
    assert torch.equal(batch.x[:, 1:], batch.y[:, :-1] + 1)
    assert (batch.x[:, 0] == 0).all()
    coarse = load("mnist-density", mnist, levels=16)
    assert coarse.info.vocabulary == 17
    assert torch.equal(coarse.test.batch([3]).y, batch.y[:1] // 16)
    with pytest.raises(ValueError, match="levels must be an integer from 2 to 256, got 257"):
        load("mnist-density", mnist, levels=257)


def test_digits_density(tmp_path):
    data = load("digits-density", tmp_path)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [1294, 144, 359]
    assert (data.info.length, data.info.vocabulary, data.info.d_output) == (64, 18, 17)
    batch, plain = data.test.batch([7]), load("digits", tmp_path).test.batch([7])
    assert torch.equal(batch.y, (16 * plain.x[..., 0]).round().long())
    assert torch.equal(batch.x[:, 1:], batch.y[:, :-1] + 1)
