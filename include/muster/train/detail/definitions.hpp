// All definitions of muster::train and of the layers below it, for a program that compiles muster from its headers
// alone.
#pragma once

#include <muster/ps/detail/definitions.hpp>

#include <muster/train/detail/arena-inl.hpp>
#include <muster/train/detail/checkpoint-inl.hpp>
#include <muster/train/detail/checkpoint_export-inl.hpp>
#include <muster/train/detail/checkpoint_file-inl.hpp>
#include <muster/train/detail/checkpoint_writer-inl.hpp>
#include <muster/train/detail/collective_statistics-inl.hpp>
#include <muster/train/detail/option_parsers-inl.hpp>
#include <muster/train/detail/parameter_server_backend-inl.hpp>
#include <muster/train/detail/parameter_server_run-inl.hpp>
#include <muster/train/detail/tensorboard_file-inl.hpp>
#include <muster/train/detail/timeline-inl.hpp>
#include <muster/train/detail/tracker-inl.hpp>
#include <muster/train/detail/tracker_report-inl.hpp>
#include <muster/train/detail/train_settings-inl.hpp>
#include <muster/train/detail/training-inl.hpp>
#include <muster/train/detail/training_reports-inl.hpp>
#include <muster/train/detail/training_run-inl.hpp>
#include <muster/train/optimizers/detail/optimizer-inl.hpp>
#include <muster/train/optimizers/detail/schedule-inl.hpp>
#include <muster/train/sync/detail/compress-inl.hpp>
#include <muster/train/sync/detail/gossip-inl.hpp>
#include <muster/train/sync/detail/gradient_sync-inl.hpp>
#include <muster/train/sync/detail/sync_mode-inl.hpp>
#include <muster/train/sync/detail/typed_gradients-inl.hpp>
