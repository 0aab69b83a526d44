from gpt_jax.data.word_counts import WordCounts


def test_word_counts_are_bounded_and_keep_the_frequent():
  counts = WordCounts(max_characters=1000)
  for start in range(0, 2000, 100):
    counts.add({f"w{i:05}": 1 for i in range(start, start + 100)} | {"often": 5, "sometimes": 2})
  assert sum(map(len, counts.words)) <= 1000
  assert counts.words["often"] == 100 and counts.words["sometimes"] == 40
  kept = [int(word[1:]) for word in counts.words if word.startswith("w")]
  assert min(kept) < 700 < 1300 < max(kept)  # not only the newest
