"""Fields of files that other software writes: what changes results is read, or refused by name."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gpt_jax.errors import InputError


class Fields(NamedTuple):
  known: str  # names, separated by spaces, that are read, or have no effect on what is read
  values: Mapping[str, tuple]  # name -> what it may be besides null, false or empty

  def unsupported(self, path: str, settings: Mapping[str, Any]) -> str:
    """The reason to refuse a file; "" if there is none. Warns of names that are on no list."""
    settings = {name: value for name, value in settings.items() if value}
    for name, allowed in self.values.items():
      if name in settings and settings[name] not in allowed:
        expected = " or ".join(map(repr, allowed)) or "none"
        return f"{name} is {settings[name]!r}: only {expected} is supported"
    if unknown := sorted(settings.keys() - set(self.known.split()) - self.values.keys()):
      warnings.warn(f"{path}: not known, and not read: {', '.join(unknown)}", stacklevel=5)
    return ""


# config.json; family.supported has further values. Of its settings of generation start and end are
# read, and flags replace the others; what concerns training is without effect here.
CONFIG_FIELDS = Fields(
  """model_type architectures id2label label2id num_labels problem_type vocab_size hidden_size
  num_hidden_layers num_attention_heads intermediate_size type_vocab_size max_position_embeddings
  hidden_act hidden_dropout_prob attention_probs_dropout_prob classifier_dropout layer_norm_eps
  classifier_dropout_prob embedding_size num_hidden_groups inner_group_num n_positions n_ctx n_embd
  n_layer n_head n_inner afn activation_function resid_pdrop attn_pdrop embd_pdrop d_model d_kv d_ff
  layer_norm_epsilon num_layers num_decoder_layers num_heads dense_act_fn feed_forward_proj
  is_gated_act dropout_rate relative_attention_num_buckets relative_attention_max_distance
  pad_token_id bos_token_id eos_token_id sep_token_id decoder_start_token_id position_embedding_type
  is_encoder_decoder is_decoder add_cross_attention tie_word_embeddings scale_attn_weights
  scale_attn_by_inverse_layer_idx reorder_and_upcast_attn scale_decoder_outputs tie_encoder_decoder
  initializer_range initializer_factor dtype torch_dtype use_cache use_bfloat16 return_dict
  output_past output_attentions output_hidden_states torchscript chunk_size_feed_forward
  gradient_checkpointing finetuning_task tokenizer_class transformers_version _name_or_path auto_map
  _attn_implementation_autoset summary_type summary_use_proj summary_activation
  summary_proj_to_labels summary_first_dropout predict_special_tokens directionality pooler_type
  pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head gap_size
  net_structure_type num_memory_blocks down_scale_factor max_length min_length do_sample prefix
  early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
  repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
  num_return_sequences task_specific_params gpt_jax""",
  {"quantization_config": (), "pruned_heads": (), "cross_attention_hidden_size": ()},
)
# generation_config.json; flags replace what concerns sampling and length.
GENERATION_FIELDS = Fields(
  """eos_token_id bos_token_id pad_token_id decoder_start_token_id do_sample temperature top_k top_p
  max_length max_new_tokens min_length num_beams num_return_sequences length_penalty early_stopping
  use_cache return_dict_in_generate output_attentions output_hidden_states output_scores
  cache_implementation transformers_version _from_model_config""",
  {},
)
# tokenizer_config.json; padding and decoding are ours.
TOKENIZER_FIELDS = Fields(
  """tokenizer_class do_lower_case strip_accents keep_accents tokenize_chinese_chars extra_ids
  add_prefix_space added_tokens_decoder additional_special_tokens extra_special_tokens bos_token
  eos_token unk_token sep_token pad_token cls_token mask_token split_special_tokens max_len
  model_max_length max_length do_basic_tokenize remove_space legacy backend is_local
  local_files_only name_or_path special_tokens_map_file tokenizer_file model_input_names
  model_specific_special_tokens processor_class auto_map chat_template errors trim_offsets
  clean_up_tokenization_spaces padding_side pad_token_type_id pad_to_multiple_of stride
  truncation_strategy unk_id""",
  dict.fromkeys(("never_split", "sp_model_kwargs", "add_bos_token", "add_eos_token"), ())
  | {"truncation_side": ("right",), "wordpieces_prefix": ("##",)},
)
# sentence_bert_config.json, config_sentence_transformers.json and the modules' config.json.
VECTOR_FIELDS = Fields(
  """max_seq_length do_lower_case unpad_inputs model_args tokenizer_args config_args include_prompt
  word_embedding_dimension embedding_dimension pooling_mode pooling_mode_cls_token prompts
  pooling_mode_mean_tokens pooling_mode_max_tokens pooling_mode_mean_sqrt_len_tokens __version__
  pooling_mode_weightedmean_tokens pooling_mode_lasttoken similarity_fn_name""",
  {
    "transformer_task": ("feature-extraction",),
    "modality_config": (
      {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    ),
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("token_embeddings", "sentence_embedding"),
    "model_type": ("SentenceTransformer",),
    **dict.fromkeys(("processing_kwargs", "query_length", "document_length"), ()),
    **dict.fromkeys(("query_expansion", "default_prompt_name", "truncate_dim"), ()),
  },
)


# Their names of the activations that a Transformer has, and ours; the first of two is written.
ACTIVATIONS = {
  "gelu": "gelu",
  "gelu_new": "gelu_tanh",
  "gelu_pytorch_tanh": "gelu_tanh",
  "relu": "relu",
  "silu": "silu",
  "swish": "silu",
}


def their_activation(names: Mapping[str, str], ours: str) -> str:
  """The name to write for an activation; see ACTIVATIONS."""
  return next(theirs for theirs, name in names.items() if name == ours)


Supported = tuple[tuple[str, tuple], ...]  # (setting, its values in our models); see check_config


def check_config(
  path: str, config: dict, sizes: Iterable[str], supported: Callable[[dict], Supported]
) -> None:
  """Refuses a config.json with other settings than our models have.

  Args:
    sizes: settings that must be numbers.
    supported: supported(config) -> settings and their values; the first is transformers' default.
  """
  for name in sizes:
    if type(config.get(name)) is not int:
      raise InputError(f"{path}: {name} is {config.get(name)!r}: should be a number")
  for name, values in supported(config):
    if config.get(name, values[0]) not in values:
      allowed = " or ".join(map(repr, values))
      raise InputError(f"{path}: {name} is {config[name]!r}: only {allowed} is supported")
  if reason := CONFIG_FIELDS.unsupported(path, config):
    raise InputError(f"{path}: {reason}")
