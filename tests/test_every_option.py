"""Every field of every recipe and every option of every command has an effect, is refused, or names the test of its effect.

A field gets another valid value. Then the resolved model, the parameters' optimizer settings, the learning rates, one batch or
its loss must change, or the value must be refused. Nothing is trained: models are small or on the meta device.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image

from vitrine.cli import COMMANDS, PARSE_THEIR_OWN, load_command
from vitrine.commands.train import Options
from vitrine.core.arguments import parse_options
from vitrine.core.runtime import start_runtime
from vitrine.data.augment.transforms import TrainTransform
from vitrine.data.batch import Batch
from vitrine.data.config import DataConfig
from vitrine.data.open_data import open_train_data
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.sampling import SampleRng, StepSampler
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.save import save_model
from vitrine.models.config import ResNetConfig
from vitrine.models.registry import build_meta_model, build_model
from vitrine.objectives.config import OBJECTIVES
from vitrine.recipe import Recipe, format_option, list_fields, resolve_changes, with_changes
from vitrine.recipes.finetune import FinetuneTask
from vitrine.recipes.pretrain import TABLE_3_RECIPES, TABLE_7_RECIPES
from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES
from vitrine.run.build import RunData, build_initial_model, build_objective
from vitrine.run.run import begin
from vitrine.studies.vtab.protocol import build_protocol, check_recipe
from vitrine.training.optimizer import build_optimizer, freeze
from vitrine.training.schedule import compute_lr

ROOT = Path(__file__).parent.parent
CLASSES = ("ant", "bee")
EPOCH_STEPS = 3000  # for lengths in epochs

# Fields and options whose effect is elsewhere, each with the test that shows it.
TESTED_ELSEWHERE: dict[str, str] = {
    "data.bad_images": "tests/run/test_run.py::test_bad_images_are_an_error_or_skipped",
    "data.changed": "tests/run/test_resume.py::test_changed_data_is_noticed_and_named",
    "data.in_memory": "tests/data/test_open_data.py::test_images_are_loaded_into_memory_on_request",
    "loader.num_workers": "tests/run/test_resume.py::test_another_number_of_workers_changes_nothing",
    "loader.prefetch": "tests/data/test_loader.py::test_prefetch_is_the_number_of_batches_ahead",
    "loader.stuck_after_s": "tests/data/test_loader.py::test_stopped_worker_is_reported_until_it_continues",
    "optim.max_grad_norm": "tests/training/test_loop.py::test_gradients_are_clipped_to_the_norm",
    "polyak_factor": "tests/run/test_run.py::test_averaged_weights_are_evaluated_and_then_swapped_back",
    "evaluation.num_times": "tests/run/test_callbacks.py::test_evaluations_are_evenly_spaced_up_to_the_last_step",
    "evaluation.batch_size": "tests/run/test_build.py::test_an_evaluation_reads_every_image_once_for_any_number_of_ranks",
    "evaluation.patience": "tests/run/test_run.py::test_patience_keeps_the_best_weights",
    "evaluation.test": "tests/run/test_build.py::test_test_images_are_not_opened_if_the_recipe_says_so",
    "evaluation.few_shot": "tests/run/test_run.py::test_few_shot_accuracy_is_measured_if_requested",
    "machine.precision": "tests/training/test_loop.py::test_bfloat16_computes_in_it_and_keeps_weights_in_float32",
    "machine.compile": "tests/training/test_loop.py::test_a_compiled_model_trains_the_same",
    "machine.accumulation_steps": "tests/training/test_loop.py::test_accumulated_gradients_equal_those_of_the_whole_batch",
    "machine.sharding": "tests/training/test_parallel.py::test_one_process_is_neither_wrapped_nor_sharded",
    "saving.every_minutes": "tests/run/test_callbacks.py::test_saving_by_the_clock_counts_from_the_last_checkpoint_of_any_kind",
    "saving.every_steps": "tests/run/test_callbacks.py::test_metrics_are_read_whenever_anything_is_due_and_only_then",
    "saving.keep_last": "tests/run/test_folder.py::test_the_last_few_are_kept",
    "report.every_steps": "tests/run/test_callbacks.py::test_a_log_line_averages_all_steps_since_the_last_line",
    "report.tensorboard": "tests/run/test_callbacks.py::test_metrics_go_to_every_file_and_those_of_training_to_the_terminal",
    "report.page": "tests/run/test_report.py::test_a_run_without_a_page_gets_one_later",
    "device": "tests/run/test_run.py::test_an_unknown_device_is_named",
}
# Options of the commands by command and name, those that several commands share by their dataclass.
OPTIONS_TESTED: dict[str, str] = {
    "cache clear": "tests/commands/test_cache.py::test_show_and_clear",
    "cache json": "tests/commands/test_cache.py::test_show_and_clear",
    "fit data": "tests/commands/test_fit.py::test_a_classifier_from_a_folder",
    "fit model": "tests/commands/test_fit.py::test_a_classifier_from_a_folder",
    "fit out": "tests/commands/test_fit.py::test_a_classifier_from_a_folder",
    "fit json": "tests/commands/test_fit.py::test_a_classifier_from_a_folder",
    "FitConfig.minutes": "tests/fitting/test_fit.py::test_too_little_time_is_refused_before_anything_is_written",
    "FitConfig.balance": "tests/fitting/test_fit.py::test_uneven_classes_are_balanced_where_that_helps",
    "FitConfig.framing": "tests/fitting/test_fit.py::test_the_whole_image_is_chosen_where_the_centre_says_nothing",
    "FitConfig.image_size": "tests/fitting/test_fit.py::test_another_image_size_and_seed",
    "FitConfig.changed": "tests/fitting/test_fit.py::test_the_same_command_continues_and_another_is_refused",
    "FitConfig.seed": "tests/fitting/test_fit.py::test_another_image_size_and_seed",
    "FitConfig.device": "tests/fitting/test_fit.py::test_device_and_precision_reach_the_model",
    "FitConfig.precision": "tests/fitting/test_fit.py::test_device_and_precision_reach_the_model",
    "FitConfig.num_workers": "tests/fitting/test_fit.py::test_workers_change_nothing",
    "convert model": "tests/commands/test_convert.py::test_a_model_survives_every_format",
    "convert out": "tests/commands/test_convert.py::test_a_model_survives_every_format",
    "convert format": "tests/commands/test_convert.py::test_a_model_survives_every_format",
    "convert num_classes": "tests/commands/test_convert.py::test_assumptions_and_a_new_head_are_one_line_each",
    "convert resize_method": "tests/formats/test_convert.py::test_bad_arguments_write_nothing",
    "convert overwrite": "tests/commands/test_convert.py::test_an_existing_file_needs_overwrite",
    "convert verify": "tests/commands/test_convert.py::test_verified_conversion_to_hugging_face",
    "convert images": "tests/commands/test_convert.py::test_another_size_and_real_images",
    "convert seed": "tests/commands/test_convert.py::test_mistakes_write_nothing",
    "convert device": "tests/commands/test_convert.py::test_mistakes_write_nothing",
    "convert json": "tests/commands/test_convert.py::test_verified_conversion_to_hugging_face",
    "CheckpointOptions.image_size": "tests/commands/test_options.py::test_a_bare_file_is_loaded_with_the_overrides",
    "CheckpointOptions.preprocess": "tests/commands/test_options.py::test_a_bare_file_is_loaded_with_the_overrides",
    "CheckpointOptions.gelu": "tests/formats/test_load.py::test_overrides_that_a_checkpoint_contradicts_are_errors",
    "CheckpointOptions.norm_eps": "tests/formats/test_load.py::test_overrides_that_a_checkpoint_contradicts_are_errors",
    "CheckpointOptions.num_heads": "tests/formats/test_load.py::test_overrides_that_a_checkpoint_contradicts_are_errors",
    "CheckpointOptions.grid": "tests/formats/test_load.py::test_overrides_that_a_checkpoint_contradicts_are_errors",
    "CheckpointOptions.pool": "tests/formats/test_google.py::test_the_pool_is_assumed_where_tensors_do_not_show_it",
    "CheckpointOptions.class_names": "tests/commands/test_options.py::test_class_names_are_one_per_line_in_any_script",
    "data check data": "tests/commands/test_data_check.py::test_what_is_wrong_is_said_shown_and_listed",
    "data check model": "tests/commands/test_data_check.py::test_a_model_doubts_labels",
    "data check page": "tests/commands/test_data_check.py::test_what_is_wrong_is_said_shown_and_listed",
    "data check leave_out": "tests/commands/test_data_check.py::test_what_is_wrong_is_said_shown_and_listed",
    "data check json": "tests/commands/test_data_check.py::test_what_is_wrong_is_said_shown_and_listed",
    "data check no_cache": "tests/commands/test_data_check.py::test_options_of_the_model_need_a_model",
    "data check device": "tests/commands/test_data_check.py::test_options_of_the_model_need_a_model",
    "InferenceConfig.batch_size": "tests/commands/test_evaluate.py::test_workers_and_batch_size_change_nothing",
    "InferenceConfig.num_workers": "tests/commands/test_evaluate.py::test_workers_and_batch_size_change_nothing",
    "InferenceConfig.bad_images": "tests/commands/test_evaluate.py::test_bad_image_is_an_error_or_skipped",
    "InferenceConfig.precision": "tests/commands/test_precision.py::test_precision_changes_what_is_computed",
    "data duplicates pretrain": "tests/commands/test_data_duplicates.py::test_what_is_in_the_test_set_is_listed",
    "data duplicates test": "tests/commands/test_data_duplicates.py::test_what_is_in_the_test_set_is_listed",
    "data duplicates split": "tests/commands/test_data_duplicates.py::test_a_mistake_costs_a_sentence",
    "data duplicates test_split": "tests/commands/test_data_duplicates.py::test_other_splits_can_be_compared",
    "data duplicates out": "tests/commands/test_data_duplicates.py::test_the_list_leaves_images_out_of_a_run",
    "data duplicates json": "tests/commands/test_data_duplicates.py::test_what_is_in_the_test_set_is_listed",
    "data pack data": "tests/commands/test_data_pack.py::test_a_folder_of_images",
    "data pack out": "tests/commands/test_data_pack.py::test_a_packed_set_is_data_like_any_other",
    "data pack size": "tests/commands/test_data_pack.py::test_a_folder_of_images",
    "data pack splits": "tests/commands/test_data_pack.py::test_built_in_data",
    "data pack channels": "tests/commands/test_data_pack.py::test_a_packed_set_is_data_like_any_other",
    "data pack bad_images": "tests/commands/test_data_pack.py::test_bad_images_are_counted_or_stop_it",
    "data pack overwrite": "tests/commands/test_data_pack.py::test_what_exists_is_not_overwritten_unasked",
    "data pack json": "tests/commands/test_data_pack.py::test_a_folder_of_images",
    "demo out": "tests/commands/test_demo.py::test_demo_on_built_in_data",
    "demo data": "tests/commands/test_demo.py::test_interrupted_demo_is_resumed",
    "demo model": "tests/commands/test_demo.py::test_interrupted_demo_is_resumed",
    "demo seed": "tests/commands/test_demo.py::test_invalid_arguments_are_one_line",
    "demo device": "tests/commands/test_demo.py::test_demo_on_built_in_data",
    "demo quick": "tests/commands/test_demo.py::test_demo_on_built_in_data",
    "demo jobs": "tests/commands/test_demo.py::test_demo_on_built_in_data",
    "demo json": "tests/commands/test_demo.py::test_demo_on_built_in_data",
    "evaluate model": "tests/commands/test_evaluate.py::test_metrics_equal_sklearn",
    "evaluate data": "tests/commands/test_evaluate.py::test_metrics_equal_sklearn",
    "evaluate split": "tests/commands/test_evaluate.py::test_default_split_is_test_else_val",
    "evaluate mapping": "tests/commands/test_evaluate.py::test_mapping_of_classes",
    "evaluate against": "tests/commands/test_evaluate.py::test_two_models_are_compared",
    "evaluate out": "tests/commands/test_evaluate.py::test_no_mistakes_write_no_files",
    "evaluate json": "tests/commands/test_evaluate.py::test_two_models_are_compared",
    "evaluate device": "tests/commands/test_evaluate.py::test_errors_are_one_line",
    "features model": "tests/commands/test_features.py::test_all_splits_or_one",
    "features data": "tests/commands/test_features.py::test_all_splits_or_one",
    "features out": "tests/commands/test_features.py::test_errors_are_one_line",
    "features split": "tests/commands/test_features.py::test_all_splits_or_one",
    "features no_cache": "tests/commands/test_features.py::test_features_are_cached_unless_turned_off",
    "features device": "tests/core/test_runtime.py::test_a_missing_device_is_an_error",
    "few-shot model": "tests/commands/test_few_shot.py::test_results_equal_features_by_hand",
    "few-shot data": "tests/commands/test_few_shot.py::test_several_data_sets",
    "few-shot shots": "tests/commands/test_few_shot.py::test_results_equal_features_by_hand",
    "few-shot seeds": "tests/commands/test_few_shot.py::test_results_equal_features_by_hand",
    "few-shot l2": "tests/commands/test_few_shot.py::test_results_equal_features_by_hand",
    "few-shot mean_rank": "tests/commands/test_few_shot.py::test_mean_rank_chooses_one_l2_for_all_data_sets",
    "few-shot json": "tests/commands/test_few_shot.py::test_errors_are_one_line",
    "FeatureOptions.held_out": "tests/commands/test_few_shot.py::test_held_out_fraction_of_undivided_data",
    "FeatureOptions.subset": "tests/evaluation/test_extract_split.py::test_a_subset_is_of_the_training_images",
    "FeatureOptions.no_cache": "tests/commands/test_probe.py::test_features_are_cached_unless_turned_off",
    "FeatureOptions.device": "tests/core/test_runtime.py::test_a_missing_device_is_an_error",
    "inspect model": "tests/commands/test_inspection.py::test_report_is_written",
    "inspect images": "tests/commands/test_inspection.py::test_report_is_written",
    "inspect out": "tests/commands/test_inspection.py::test_report_is_written",
    "inspect device": "tests/core/test_runtime.py::test_a_missing_device_is_an_error",
    "inspect precision": "tests/commands/test_precision.py::test_precision_changes_what_is_computed",
    "InspectConfig.query": "tests/commands/test_inspection.py::test_report_is_written",
    "InspectConfig.layers": "tests/inspection/test_inspect_model.py::test_chosen_layers_and_heads",
    "InspectConfig.heads": "tests/inspection/test_inspect_model.py::test_chosen_layers_and_heads",
    "InspectConfig.num_drawn": "tests/inspection/test_inspect_model.py::test_number_of_drawn_and_measured_images",
    "InspectConfig.num_measured": "tests/inspection/test_inspect_model.py::test_number_of_drawn_and_measured_images",
    "RolloutConfig.fusion": "tests/inspection/test_rollout.py::test_fusion_of_heads",
    "RolloutConfig.identity": "tests/inspection/test_rollout.py::test_identity_attention_gives_identity",
    "RolloutConfig.dropped_share": "tests/inspection/test_rollout.py::test_weakest_attention_is_dropped",
    "models names": "tests/commands/test_models.py::test_options_change_the_figures",
    "models image_size": "tests/commands/test_models.py::test_options_change_the_figures",
    "models num_classes": "tests/commands/test_models.py::test_options_change_the_figures",
    "models images": "tests/commands/test_models.py::test_options_change_the_figures",
    "models epochs": "tests/commands/test_models.py::test_options_change_the_figures",
    "models pretrained": "tests/commands/test_models.py::test_pretrained_models_are_listed",
    "models json": "tests/commands/test_models.py::test_json_has_the_same_figures",
    "predict model": "tests/commands/test_predict.py::test_json_and_csv",
    "predict images": "tests/commands/test_predict.py::test_several_images_are_a_table",
    "predict top": "tests/commands/test_predict.py::test_json_and_csv",
    "predict reject_below": "tests/commands/test_predict.py::test_unsure_answers_are_marked",
    "predict json": "tests/commands/test_predict.py::test_json_and_csv",
    "predict csv": "tests/commands/test_predict.py::test_csv_has_a_row_for_each_image",
    "predict long": "tests/commands/test_predict.py::test_json_and_csv",
    "predict device": "tests/core/test_runtime.py::test_a_missing_device_is_an_error",
    "predict batch_size": "tests/commands/test_predict.py::test_workers_and_batch_size_change_nothing",
    "predict precision": "tests/commands/test_precision.py::test_precision_changes_what_is_computed",
    "predict num_workers": "tests/commands/test_predict.py::test_workers_and_batch_size_change_nothing",
    "probe model": "tests/commands/test_probe.py::test_results_equal_features_by_hand",
    "probe data": "tests/commands/test_probe.py::test_results_equal_features_by_hand",
    "probe kinds": "tests/commands/test_probe.py::test_chosen_kinds_in_order",
    "probe json": "tests/commands/test_probe.py::test_results_equal_features_by_hand",
    "ProbeConfig.penalties": "tests/commands/test_probe.py::test_settings_are_used",
    "ProbeConfig.choice_share": "tests/commands/test_probe.py::test_settings_are_used",
    "ProbeConfig.num_neighbours": "tests/commands/test_probe.py::test_settings_are_used",
    "ProbeConfig.temperature": "tests/commands/test_probe.py::test_settings_are_used",
    "ProbeConfig.seed": "tests/commands/test_probe.py::test_seed_divides_undivided_data",
    "train out": "tests/commands/test_train.py::test_the_result_of_a_run_is_printed_and_written",
    "train seeds": "tests/commands/test_train.py::test_a_learning_rate_is_chosen_and_trained_with_several_seeds",
    "train select_rate": "tests/commands/test_train.py::test_a_learning_rate_is_chosen_and_trained_with_several_seeds",
    "train rates": "tests/commands/test_train.py::test_a_learning_rate_is_chosen_and_trained_with_several_seeds",
    "train json": "tests/commands/test_train.py::test_the_result_of_a_run_is_printed_and_written",
    "study name": "tests/commands/test_study.py::test_a_study_from_end_to_end",
    "study list": "tests/commands/test_study.py::test_studies_are_listed_with_their_times",
    "study dry_run": "tests/commands/test_study.py::test_the_cost_of_the_paper_s_grid_is_listed",
    "study search": "tests/commands/test_study.py::test_a_search_tries_settings_on_held_out_images",
    "study json": "tests/commands/test_study.py::test_a_study_from_end_to_end",
    "StudyConfig.scale": "tests/commands/test_study.py::test_the_cost_of_the_paper_s_grid_is_listed",
    "StudyConfig.data": "tests/studies/test_run_study.py::test_own_data_with_a_failing_run",
    "StudyConfig.seeds": "tests/commands/test_study.py::test_the_cost_of_the_paper_s_grid_is_listed",
    "StudyConfig.jobs": "tests/studies/test_children.py::test_two_jobs_give_the_same_numbers_as_one",
    "StudyConfig.out": "tests/commands/test_study.py::test_a_study_from_end_to_end",
    "vtab out": "tests/commands/test_vtab.py::test_sweep_chooses_learning_rate_and_length",
    "vtab json": "tests/commands/test_vtab.py::test_results_are_printed_and_written",
    "VtabConfig.tasks": "tests/studies/vtab/test_protocol.py::test_some_tasks_can_be_chosen",
    "VtabConfig.generated": "tests/studies/vtab/test_protocol.py::test_generated_tasks_are_added_on_request",
    "VtabConfig.test_images": "tests/commands/test_vtab.py::test_no_score_without_a_task_of_the_benchmark",
    "VtabConfig.seeds": "tests/commands/test_vtab.py::test_results_are_printed_and_written",
    "VtabConfig.sweep": "tests/commands/test_vtab.py::test_sweep_chooses_learning_rate_and_length",
    "VtabConfig.rates": "tests/commands/test_vtab.py::test_sweep_chooses_learning_rate_and_length",
    "VtabConfig.lengths": "tests/commands/test_vtab.py::test_sweep_chooses_learning_rate_and_length",
}

# Other values of a field; the first that is valid and differs from the recipe's is taken.
VALUES: dict[str, tuple[Any, ...]] = {
    "model.name": ("ViT-S/8", "R26x0.25", "R50x0.25+ViT-S/16"),
    "model.preprocess": ("imagenet", "inception"),
    "model.image_size": (64,),
    "model.num_channels": (1, 3),
    "model.patch_size": (8, 4),
    "model.width": (48, 32),
    "model.depth": (3,),
    "model.num_heads": (1, 2),
    "model.mlp_dim": (40,),
    "model.gelu": ("erf", "tanh"),
    "model.norm_eps": (1e-3,),
    "model.pool": ("mean", "class"),
    "model.readout_layers": ((1,), (0,)),
    "model.readout": ("mean",),
    "model.hidden_head": (True, False),
    "model.head_bias": (-3.0,),
    "model.num_registers": (2,),
    "model.position": ("learned-2d", "none"),
    "model.position_insertion": ("every-layer",),
    "model.layer_scale": (0.5,),
    "model.dropout_rate": (0.25,),
    "model.stochastic_depth_rate": (0.25,),
    "model.stages": ((1, 2),),
    "model.width_factor": (0.25,),
    "model.num_groups": (4, 2),
    "model.stem_stages": ((1, 2),),
    "model.stem_width_factor": (0.25,),
    "model.stem_num_groups": (4, 2),
    "data.split": ("test",),
    "data.subset": ("50%", "6"),
    "data.subset_seed": (1,),
    "data.held_out": (0.25, 0.5),
    "loader.batch_size": (48,),
    "loader.last": ("keep",),
    "augment.crop": ("none", "random"),
    "augment.crop_area": ((0.5, 0.6),),
    "augment.crop_ratio": ((1.0, 1.0),),
    "augment.resize": (500,),
    "augment.padding": (3,),
    "augment.interpolation": ("bicubic",),
    "augment.flip": (True, False),
    "augment.rand_augment_ops": (1, 2),
    "augment.rand_augment_magnitude": (3.0,),
    "augment.erase_rate": (1.0,),
    "augment.erase_fill": ("grey",),
    "mixing.mixup": (0.3,),
    "mixing.cutmix": (0.3,),
    "objective": ("masked-patches", "supervised"),
    "supervised.loss": ("sigmoid", "softmax"),
    "supervised.label_smoothing": (0.3,),
    "masked_patches.target": ("pixels",),
    "masked_patches.corrupted_rate": (0.25,),
    "masked_patches.masked_rate": (0.5,),
    "masked_patches.replaced_rate": (0.2,),
    "optim.kind": ("sgd", "adamw"),
    "optim.learning_rate": (0.007,),
    "optim.weight_decay": (0.02,),
    "optim.decay_mask": ("all",),
    "optim.beta1": (0.5,),
    "optim.beta2": (0.5,),
    "optim.eps": (1e-4,),
    "optim.momentum": (0.5,),
    "optim.warmup_steps": (7,),
    "optim.decay": ("linear", "constant"),
    "optim.final_rate": (1e-6,),
    "optim.decay_at": ((0.5,),),
    "optim.rsqrt_timescale": (77,),
    "optim.cooldown_steps": (5,),
    "optim.layer_decay": (0.5,),
    "optim.frozen_blocks": (1,),
    "epochs": (77.0,),
    "total_steps": (20_001,),
    "head_init": ("ridge", "discriminant"),
    "evaluation.resize": (600,),
    "machine.gradient_checkpointing": (True,),
    "seed": (5,),
}

# Recipes with another choice each, so that the fields of every choice are met where they have an effect.
VARIANTS: dict[str, dict[str, Any]] = {
    "sgd": {"optim": {"kind": "sgd"}},
    "no decay of weights": {"optim": {"weight_decay": 0.0}},
    "only the head": {"optim": {"frozen_blocks": -1}},
    "layer decay": {"optim": {"layer_decay": 0.9}},
    **{f"{kind} schedule": {"optim": {"decay": kind}} for kind in ("constant", "linear", "piecewise", "rsqrt")},
    **{f"{kind} crop": {"augment": {"crop": kind, "padding": 4}} for kind in ("inception", "random", "none")},
    "RandAugment and erasing": {"augment": {"rand_augment_ops": 2, "erase_rate": 0.9}},
    "mixup": {"mixing": {"mixup": 0.2}},
    "a subset": {"data": {"subset": "50%"}},
    "epochs": {"epochs": 50.0},
    "masked patches": {"objective": "masked-patches"},
    "relative positions": {"model": {"position": "relative"}},
    "a readout": {"model": {"readout_layers": (0, 1)}},
    "a sigmoid": {"supervised": {"loss": "sigmoid"}},
}


@dataclass(frozen=True)
class Files:
    """Data, another dataset, and two checkpoints."""

    images: Path
    other_images: Path
    exclude: Path
    checkpoint: Path
    other_checkpoint: Path


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Write small class folders with splits, a list of images to exclude, and two small models."""
    root, rng = tmp_path_factory.mktemp("options"), np.random.default_rng(0)
    for folder, count in (("images/train", 12), ("images/test", 11), ("other/train", 10), ("other/test", 2)):
        for label in CLASSES:
            (root / folder / label).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).resize((48, 48)).save(root / folder / label / f"{folder[0]}{index}.png")
    (root / "exclude.txt").write_text("ant/i0.png\n")
    for name, width in (("model", 8), ("other-model", 12)):
        model = build_model("ViT-Ti/16", image_size=32, width=width, depth=2, num_heads=1, mlp_dim=8, num_classes=5)
        save_model(model, root / name, preprocessing=build_inception_preprocessing((32, 32)))
    return Files(root / "images", root / "other", root / "exclude.txt", root / "model", root / "other-model")


def shrink(recipe: Recipe, source: Path) -> Recipe:
    """Return a recipe on small data, with two blocks or stages and without worker processes."""
    settings = recipe.model
    if settings.name is not None:
        is_resnet = isinstance(settings.resolve(2), ResNetConfig)
        has_stem = settings.resolve(2).__class__.__name__ == "HybridConfig"
        small = {"stages": (1, 1)} if is_resnet else {"depth": 2, **({"stem_stages": (1, 1)} if has_stem else {})}
        settings = replace(settings, **small)
    held_out = 0.25 if recipe.data.held_out else 0.0
    data = replace(recipe.data, source=str(source), in_memory=False, held_out=held_out)
    return replace(recipe, model=settings, data=data, loader=replace(recipe.loader, num_workers=0))


def list_recipes(files: Files) -> dict[str, Recipe]:
    """Return every recipe of both commands and of VTAB, and the variants of two of them."""
    task = FinetuneTask(str(files.checkpoint), str(files.images), num_images=24, num_classes=2)
    recipes = {name: shrink(build(), files.images) for name, build in RECIPES.items()}
    recipes |= {f"finetune {name}": shrink(rule.build(task), files.images) for name, rule in FINETUNE_RECIPES.items()}
    recipes["vtab"] = shrink(build_protocol(str(files.checkpoint), str(files.images)), files.images)
    digits = recipes["digits"]
    small = replace(digits, model=replace(digits.model, num_channels=3, image_size=32, patch_size=8))
    recipes |= {f"digits with {name}": with_changes(small, **changes) for name, changes in VARIANTS.items()}
    return recipes


# Rows of a table that differ in sizes and rates only: one of each kind of network and dataset is enough for every run.
SIMILAR = {*TABLE_3_RECIPES, *TABLE_7_RECIPES} - {
    *("jft-vit-b16", "jft-r50x1", "jft-r50-vit-b16", "jft-r50x1-sgd", "imagenet21k-vit-b16", "imagenet-vit-b16")
} | {f"finetune {name}" for name in ("cifar10", "cifar100", "flowers", "vtab")}
RECIPE_NAMES = [
    pytest.param(name, marks=pytest.mark.full if name in SIMILAR else ())
    for name in (
        *RECIPES,
        *(f"finetune {name}" for name in FINETUNE_RECIPES),
        "vtab",
        *(f"digits with {name}" for name in VARIANTS),
    )
]


@cache
def describe_data(config: DataConfig) -> tuple[Any, ...]:
    """Return the training images and the held-out ones."""
    train, held_out = open_train_data(config)
    return tuple(None if part is None else tuple(part.name(index) for index in range(len(part))) for part in (train, held_out))


@cache
def build_start(recipe: Recipe) -> Checkpoint:
    """Build the initial model: a fresh one on the meta device, or the checkpoint with its new head."""
    classes = CLASSES if OBJECTIVES[recipe.objective].needs_labels else ()
    if recipe.head_init != "zero":
        train, held_out = open_train_data(recipe.data)
        with start_runtime("cpu") as runtime:
            return begin(recipe, RunData(train, held_out, "held_out", None), runtime, None)
    with torch.device("meta" if recipe.model.checkpoint is None else "cpu"):
        return build_initial_model(recipe, classes)


def describe_model(recipe: Recipe) -> tuple[Any, ...]:
    """Return config and preprocessing of the initial model, and its head."""
    start = build_start(keep_only(recipe, "model", "data", "objective", "head_init", "machine", "evaluation", "supervised"))
    head = None if start.model.head is None or recipe.model.checkpoint is None else start.model.state_dict().get("head.weight")
    return start.model.config, start.preprocessing, None if head is None else tuple(head.flatten().tolist())


def keep_only(recipe: Recipe, *names: str) -> Recipe:
    """Return a default recipe with only these groups of another one, so that equal parts are computed once."""
    return Recipe(epochs=1, **{name: getattr(recipe, name) for name in names})


@cache
def describe_optimizer(recipe: Recipe) -> tuple[Any, ...]:
    """Return the optimizer's own settings, and for each parameter its learning-rate scale and weight decay."""
    start = build_start(replace(recipe, optim=Recipe(epochs=1).optim))
    with torch.device("meta"):
        objective = build_objective(recipe, replace(start, model=build_meta_model(start.model.config)))
    freeze(objective, recipe.optim)
    optimizer = build_optimizer(objective, recipe.optim)
    names = {id(parameter): name for name, parameter in objective.named_parameters()}
    settings = {
        names[id(parameter)]: (
            group["lr_scale"],
            group["weight_decay"],
            group.get("betas"),
            group.get("eps"),
            group.get("momentum"),
        )
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return type(optimizer).__name__, tuple(sorted(settings.items()))


def describe_schedule(recipe: Recipe) -> tuple[float, ...]:
    """Return the length of the run and the learning rate at some of its steps."""
    total_steps = recipe.compute_total_steps(EPOCH_STEPS * recipe.loader.batch_size)
    steps = {0, 1, *(round(fraction * total_steps) for fraction in np.linspace(0.1, 1, 20)), total_steps - 1}
    return total_steps, *(compute_lr(recipe.optim, step, total_steps) for step in sorted(steps))


def describe_batch(recipe: Recipe) -> tuple[Any, ...]:
    """Return the images of the first steps, and some of them after augmentation."""
    preprocessing = build_start(
        keep_only(recipe, "model", "data", "objective", "head_init", "machine", "evaluation", "supervised")
    ).preprocessing
    return read_batch(keep_only(recipe, "data", "augment", "loader", "seed"), preprocessing)


@cache
def read_batch(recipe: Recipe, preprocessing: Any) -> tuple[Any, ...]:
    """Return indices and pixels of a batch."""
    source, _ = open_train_data(recipe.data)
    sampler = StepSampler(
        num_images=len(source), batch_size=recipe.loader.batch_size, seed=recipe.seed, last=recipe.loader.last
    )
    first = sampler.batch_at(0)
    rng = SampleRng(recipe.seed, first.epochs[:8], first.indices[:8])
    images = [source.read(int(index))[0] for index in rng.indices]
    pixels, _ = TrainTransform(recipe.augment, preprocessing)(images, torch.zeros(8, dtype=torch.int64), rng)
    return first.indices.tobytes(), sampler.batch_at(1).indices.tobytes(), pixels.numpy().tobytes()


@cache
def compute_loss(recipe: Recipe) -> float:
    """Return the loss of one batch with a small model of random weights, whatever the recipe's model is."""
    torch.manual_seed(0)
    num_classes = len(CLASSES) if OBJECTIVES[recipe.objective].needs_labels else 0
    model = build_model(
        "ViT-Ti/16", image_size=32, patch_size=8, width=8, depth=1, num_heads=1, mlp_dim=8, num_classes=num_classes
    )
    start = Checkpoint(model, build_inception_preprocessing((32, 32)), None, {})
    objective = build_objective(recipe, start).train()
    for parameter in objective.parameters():  # heads start at zero, where every loss is the same
        torch.nn.init.normal_(parameter)
    image = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    batch = Batch(image=image, target=torch.arange(8) % 2, index=torch.arange(8), step=3)
    return objective(objective.add_draws(batch)).loss.item()


def describe(recipe: Recipe) -> tuple[Any, ...]:
    """Return everything of a recipe that is compared."""
    return (
        describe_data(recipe.data),
        describe_model(recipe),
        describe_optimizer(keep_only(recipe, "model", "data", "objective", "head_init", "machine", "evaluation", "optim")),
        describe_schedule(recipe),
        describe_batch(recipe),
        compute_loss(keep_only(recipe, "objective", "supervised", "mixing", "masked_patches", "seed")),
    )


def set_field(recipe: Recipe, name: str, value: Any) -> Recipe:
    """Set one field as the command line does, with its checks."""
    group, _, leaf = name.rpartition(".")
    changed = replace(getattr(recipe, group), **{leaf: value}) if group else value
    return resolve_changes(replace(recipe, **{group or leaf: changed}), recipe)


# Values that contradict another field, which the error names instead.
CONTRADICTIONS = {"objective": ("frozen_blocks", "Masked patch"), "model.depth": ("readout_layers",)}


def is_refusal(error: ValueError, name: str, value: Any) -> bool:
    """Return whether an error is about this field."""
    leaf = name.rpartition(".")[2]
    words = (leaf, leaf.replace("_", "-"), leaf.replace("_", " "), repr(value), *CONTRADICTIONS.get(name, ()))
    return any(word in str(error) for word in words)


def find_silent_fields(recipe: Recipe, files: Files, is_vtab: bool) -> Iterator[str]:
    """Yield the fields of a recipe that change nothing when they get another value."""
    before = describe(recipe)
    more: dict[str, tuple[Any, ...]] = {
        "model.checkpoint": (str(files.other_checkpoint),),
        "data.source": (str(files.other_images),),
        "data.exclude": (files.exclude,),
    }
    for name, _ in list_fields(recipe.to_json()):
        if name in TESTED_ELSEWHERE:
            continue
        outcomes = []
        for value in (VALUES | more)[name]:
            if value == attrgetter(name)(recipe):
                continue
            try:
                changed = set_field(recipe, name, value)
                if is_vtab:
                    check_recipe(changed, recipe)
                after = describe(changed)
            except ValueError as error:
                outcomes.append("refused" if is_refusal(error, name, value) else f"error ({error})")
                continue
            outcomes.append("changed" if after != before else f"nothing changed with {value!r}")
            break
        if not {"refused", "changed"} & set(outcomes):
            yield f"{name}: {'; '.join(outcomes) or 'no other value'}"


@pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")
@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_every_field_of_a_recipe_has_an_effect_or_is_refused(name: str, files: Files) -> None:
    recipe = list_recipes(files)[name]
    assert list(find_silent_fields(recipe, files, name == "vtab")) == []


def test_every_named_test_exists() -> None:
    missing = [test for test in {*TESTED_ELSEWHERE.values(), *OPTIONS_TESTED.values()} if not has_test(test)]
    assert missing == []


@cache
def list_tests(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def has_test(name: str) -> bool:
    path, _, function = name.partition("::")
    return (ROOT / path).is_file() and function in list_tests(ROOT / path)


def test_every_field_elsewhere_is_a_field_of_a_recipe() -> None:
    fields_of_recipes = {name for name, _ in list_fields(Recipe(epochs=1).to_json())}
    assert TESTED_ELSEWHERE.keys() <= fields_of_recipes
    assert VALUES.keys() <= fields_of_recipes


def find_group(hint: Any) -> type[Any] | None:
    """Return the dataclass whose fields are options, if a parameter is one."""
    hint = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    return hint if is_dataclass(hint) and isinstance(hint, type) else None


def list_options(hints: dict[str, Any], owner: str) -> Iterator[str]:
    """Yield the options of a command or a dataclass, and those of the groups among them."""
    for name, hint in hints.items():
        group = find_group(hint)
        if get_origin(hint) is ClassVar:
            continue
        if group is None:
            yield f"{owner}{name}"
        elif group is not Recipe:
            yield from list_options(get_type_hints(group, include_extras=True), f"{group.__name__}.")


def test_every_option_of_a_command_names_its_test() -> None:
    options: set[str] = set()
    for name in COMMANDS:
        command = load_command(name)
        if name in PARSE_THEIR_OWN:
            command = import_module(command.__module__).Options
        hints = get_type_hints(command, include_extras=True)
        hints.pop("return", None)
        options |= set(list_options(hints, "train " if command is Options else f"{name} "))
    assert options == OPTIONS_TESTED.keys()


def test_every_field_can_be_set_on_the_command_line() -> None:
    """The recipe that tyro builds of an option is the one with this field changed."""
    recipe = with_changes(RECIPES["demo-vit"](), data={"in_memory": False})
    defaults = Options(out=Path("out"), rates=(), recipe=recipe)
    for name, values in VALUES.items():
        group, _, leaf = name.rpartition(".")
        value = next(each for each in values if each != attrgetter(name)(recipe))
        try:
            changed = replace(recipe, **{group or leaf: replace(getattr(recipe, group), **{leaf: value}) if group else value})
        except ValueError:
            continue
        words = format_option(name, list(value) if isinstance(value, tuple) else value)
        assert parse_options("train demo-vit", Options, words, defaults).recipe == changed
