// Calls between the functions: in one message or in pieces, with a deadline, a trace and one-line errors.
#pragma once

#include <grpcpp/grpcpp.h>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include <muster/core/error.hpp>

#include "stacking.grpc.pb.h"
#include "transfer.hpp"

namespace stacked {

constexpr std::size_t piece_bytes = std::size_t{1} << 20;  // gRPC accepts 4 MB in a message.

/// Sends a message, or any other bytes, in pieces. Returns false if the other end has closed the stream.
template <class Stream>
bool write_pieces(Stream& to, std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size() || at == 0; at += piece_bytes) {
    stacking::Piece piece;
    piece.set_data(std::string(bytes.substr(at, piece_bytes)));
    if (!to.Write(piece)) return false;
  }
  return true;
}

/// Received bytes of a call in pieces, counted against this process's limit.
class counted_bytes {
 public:
  static constexpr std::size_t most = std::size_t{256} << 20, most_of_all = std::size_t{1} << 30;

  counted_bytes() = default;
  counted_bytes(const counted_bytes&) = delete;
  ~counted_bytes() { all_ -= bytes_.size(); }
  /// Adds a piece. Returns false if the limit would be exceeded.
  [[nodiscard]] bool add(const std::string& more) {
    if (bytes_.size() + more.size() > most) return false;
    if ((all_ += more.size()) > most_of_all) {
      all_ -= more.size();
      return false;
    }
    bytes_ += more;
    return true;
  }
  [[nodiscard]] const std::string& get() const noexcept { return bytes_; }

 private:
  static inline std::atomic<std::size_t> all_{0};
  std::string bytes_;
};

/// Receives all pieces. Returns false if they exceed the limit of counted_bytes.
template <class Stream>
bool read_pieces(Stream& from, counted_bytes& to) {
  for (stacking::Piece piece; from.Read(&piece);)
    if (!to.add(piece.data())) return false;
  return true;
}

/// A timer that cancels a call which has not ended in time.
class call_limit {
 public:
  call_limit(grpc::ServerContext& context, std::chrono::seconds most)
      : thread_([&context, most](const std::stop_token& stop) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          if (!std::condition_variable_any().wait_for(lock, stop, most, [&] { return stop.stop_requested(); }))
            context.TryCancel();
        }) {}

 private:
  std::jthread thread_;
};

/// Returns the caller's place in a trace, or a new trace if the caller sent none.
[[nodiscard]] std::optional<muster::trace_place> place_of(const grpc::ServerContext& context, tracer& of);
/// Passes the deadline and the trace of a call on to a nested call.
void pass_on(const call& of, grpc::ClientContext& context);
/// Converts an exception to a status with its kind and its line; the next function converts a status to an exception.
[[nodiscard]] grpc::Status status_of(std::exception_ptr failure);
/// Throws muster::peer_failure if the service is unreachable, and otherwise the error of the service.
[[noreturn]] void fail(const grpc::Status& status, const std::string& address);

constexpr auto longest = std::chrono::seconds(60);  // Limit for calls without a deadline, or with a later one.

/// Answers a call: `body(request, call)` returns the reply.
template <class Reply, class Request, class Body>
grpc::Status answer(const grpc::ServerContext& context, tracer& spans, const char* name, const Request& request,
                    Reply& reply, Body& body) {
  try {
    span whole(spans, name, place_of(context, spans), "SERVER");
    const call of{std::min(context.deadline(), std::chrono::system_clock::now() + longest), whole};
    reply = body(request, of);
    return grpc::Status::OK;
  } catch (...) {
    return status_of(std::current_exception());
  }
}

/// Answers a call in pieces.
template <class Reply, class Request, class Body>
grpc::Status answer_streamed(grpc::ServerContext& context, tracer& spans, const char* name,
                             grpc::ServerReaderWriter<stacking::Piece, stacking::Piece>& stream, Body& body) {
  Request request;
  {
    const call_limit limit(context, longest);
    counted_bytes bytes;
    if (!read_pieces(stream, bytes)) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED,
              std::string(name) + ": the request is too large (at most " + std::to_string(counted_bytes::most >> 20) +
                  " MiB, of all calls " + std::to_string(counted_bytes::most_of_all >> 20) +
                  " MiB); send less at a time"};
    }
    if (!request.ParseFromString(bytes.get()))
      return {grpc::StatusCode::INVALID_ARGUMENT,
              std::string(name) + ": the request is malformed; use the same protocol"};
  }
  Reply reply;
  const auto status = answer(context, spans, name, request, reply, body);
  if (status.ok()) write_pieces(stream, reply.SerializeAsString());
  return status;
}

/// Calls a function at `address`: `method` is its method for a message, and `pieces` its method for a stream. `prepare`
/// may set further properties of the call.
template <class Stub, class Request, class Reply, class Streamed>
Reply ask(const call& of, Stub& stub, const std::string& address, bool in_pieces,
          grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*), Streamed pieces,
          const Request& request, const std::function<void(grpc::ClientContext&)>& prepare = {}) {
  grpc::ClientContext context;
  pass_on(of, context);
  if (prepare) prepare(context);
  Reply reply;
  grpc::Status status;
  if (in_pieces) {
    const auto stream = (stub.*pieces)(&context);
    if (write_pieces(*stream, request.SerializeAsString())) stream->WritesDone();
    counted_bytes bytes;
    if (!read_pieces(*stream, bytes)) {
      context.TryCancel();
      throw muster::configuration_error(address + ": the reply is too large (more than " +
                                        std::to_string(counted_bytes::most >> 20) + " MiB); train smaller models");
    }
    status = stream->Finish();
    if (status.ok() && !reply.ParseFromString(bytes.get()))
      status = {grpc::StatusCode::DATA_LOSS, "the reply is malformed"};
  } else {
    status = (stub.*method)(&context, request, &reply);
  }
  if (!status.ok()) fail(status, address);
  return reply;
}

}  // namespace stacked
