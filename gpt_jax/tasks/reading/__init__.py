"""Reading comprehension: RACE, Story Cloze and SQuAD."""
