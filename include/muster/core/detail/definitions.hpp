// All definitions of muster::core and of the layers below it, for a program that compiles muster from its headers
// alone.
#pragma once

#include <muster/core/codec/detail/codec-inl.hpp>
#include <muster/core/codec/detail/compression-inl.hpp>
#include <muster/core/codec/detail/plain-inl.hpp>
#include <muster/core/codec/detail/powersgd-inl.hpp>
#include <muster/core/codec/detail/qsgd-inl.hpp>
#include <muster/core/codec/detail/sign-inl.hpp>
#include <muster/core/codec/detail/topk-inl.hpp>
#include <muster/core/detail/atomic_file-inl.hpp>
#include <muster/core/detail/buffer-inl.hpp>
#include <muster/core/detail/checked_file-inl.hpp>
#include <muster/core/detail/convert-inl.hpp>
#include <muster/core/detail/copy-inl.hpp>
#include <muster/core/detail/crc32c-inl.hpp>
#include <muster/core/detail/env-inl.hpp>
#include <muster/core/detail/error-inl.hpp>
#include <muster/core/detail/log-inl.hpp>
#include <muster/core/detail/plugin-inl.hpp>
#include <muster/core/detail/progress-inl.hpp>
#include <muster/core/detail/random-inl.hpp>
#include <muster/core/detail/scheduling-inl.hpp>
#include <muster/core/detail/source_patience-inl.hpp>
#include <muster/core/detail/spec-inl.hpp>
