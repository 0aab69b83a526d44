"""Reading comprehension: RACE, Story Cloze, and pronoun sentences for zero-shot evaluation."""
