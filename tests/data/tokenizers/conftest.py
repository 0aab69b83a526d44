import pytest
from openai_examples import TEXT, trained, write

from gpt_jax.data.tokenizers.openai_files import BYTES


@pytest.fixture(scope="session")
def small(tmp_path_factory):
  """Folders of a small vocabulary of each kind, as OpenAI would have released it: {"gpt1": …,
  "gpt2": …}.
  """
  folder = tmp_path_factory.mktemp("released")
  letters = sorted(set("abcdefghijklmnopqrstuvwxyz0123456789.,:;!?'\"()-&<>$\\éσ\ufffd"))
  merges = trained([[*word[:-1], word[-1] + "</w>"] for word in TEXT.split()], 50)
  singles = [*letters, *(letter + "</w>" for letter in letters)]
  pieces = ["<unk>", *singles, *map("".join, merges), "\n</w>"]
  gpt1 = write(folder / "gpt1", ("encoder_bpe_40000.json", "vocab_40000.bpe"), pieces, merges)
  merges = trained([[*("Ġ" + word)] for word in TEXT.split()] + [["Ċ", "Ċ"], ["Ã", "©"]], 50)
  pieces = [*BYTES, *map("".join, merges), "<|endoftext|>"]
  return {
    "gpt1": gpt1,
    "gpt2": write(folder / "gpt2", ("encoder.json", "vocab.bpe"), pieces, merges),
  }


@pytest.fixture(params=["small", "released"])
def folders(request, small):
  if request.param == "small":
    return small
  root = request.getfixturevalue("data_root")
  return {"gpt1": str(root / "gpt1_release"), "gpt2": str(root / "gpt2_release")}
