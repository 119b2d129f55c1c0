// Data ingestion alone, for a program that trains in its own way: sources, shuffling, batches, caches, prefetching.
#pragma once

#include <muster/data/cache.hpp>
#include <muster/data/classes.hpp>
#include <muster/data/dataset.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/image_steps.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/minibatch.hpp>
#include <muster/data/mixture.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/record_step.hpp>
#include <muster/data/record_transform.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/data/remote_files.hpp>
#include <muster/data/source_statistics.hpp>
#include <muster/data/standardise.hpp>

#ifndef MUSTER_COMPILED
#include <muster/data/detail/definitions.hpp>
#endif
