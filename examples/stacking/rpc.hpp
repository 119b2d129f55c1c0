// Calls between the functions: in one message or in pieces, with a deadline, a trace and errors of one line.
#pragma once

#include <grpcpp/grpcpp.h>
#include <functional>
#include <memory>
#include <string>

#include <muster/core/error.hpp>

#include "stacking.grpc.pb.h"
#include "transfer.hpp"

namespace stacked {

constexpr std::size_t piece_bytes = std::size_t{1} << 20;  // gRPC takes 4 MB of a message

/// A message, or any other bytes, in pieces. False: the other end is away.
template <class Stream>
bool write_pieces(Stream& to, std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size() || at == 0; at += piece_bytes) {
    stacking::Piece piece;
    piece.set_data(std::string(bytes.substr(at, piece_bytes)));
    if (!to.Write(piece)) return false;
  }
  return true;
}

template <class Stream>
std::string read_pieces(Stream& from) {
  std::string bytes;
  for (stacking::Piece piece; from.Read(&piece);) bytes += piece.data();
  return bytes;
}

/// The place in a trace that a caller told, and a new trace where it told none.
[[nodiscard]] std::optional<muster::trace_place> place_of(const grpc::ServerContext& context, tracer& of);
/// Deadline and trace of a call within another one.
void pass_on(const call& of, grpc::ClientContext& context);
/// As a status, and back: the kind of error and its line.
[[nodiscard]] grpc::Status status_of(std::exception_ptr failure);
/// Throws muster::peer_failure where the service is not there, and otherwise what went wrong in it.
[[noreturn]] void fail(const grpc::Status& status, const std::string& address);

/// Answers a call: `body(request, call)` makes the reply.
template <class Reply, class Request, class Body>
grpc::Status answer(const grpc::ServerContext& context, tracer& spans, const char* name, const Request& request,
                    Reply& reply, Body& body) {
  constexpr auto longest = std::chrono::seconds(60);  // where the caller gives no deadline, or a later one
  try {
    span whole(spans, name, place_of(context, spans), "SERVER");
    const call of{std::min(context.deadline(), std::chrono::system_clock::now() + longest), whole};
    reply = body(request, of);
    return grpc::Status::OK;
  } catch (...) {
    return status_of(std::current_exception());
  }
}

/// The same in pieces.
template <class Reply, class Request, class Body>
grpc::Status answer_streamed(const grpc::ServerContext& context, tracer& spans, const char* name,
                             grpc::ServerReaderWriter<stacking::Piece, stacking::Piece>& stream, Body& body) {
  Request request;
  if (!request.ParseFromString(read_pieces(stream)))
    return {grpc::StatusCode::INVALID_ARGUMENT,
            std::string(name) + ": the request is malformed; use the same protocol"};
  Reply reply;
  const auto status = answer(context, spans, name, request, reply, body);
  if (status.ok()) write_pieces(stream, reply.SerializeAsString());
  return status;
}

/// Calls a function at `address`: `one` is its method for a message, `pieces` for a stream, and `name` what the span is
/// called. `prepare` may set more of the call.
template <class Stub, class Request, class Reply, class Streamed>
Reply ask(const call& of, Stub& stub, const std::string& address, bool in_pieces,
          grpc::Status (Stub::*one)(grpc::ClientContext*, const Request&, Reply*), Streamed pieces,
          const Request& request, const std::function<void(grpc::ClientContext&)>& prepare = {}) {
  grpc::ClientContext context;
  pass_on(of, context);
  if (prepare) prepare(context);
  Reply reply;
  grpc::Status status;
  if (in_pieces) {
    const auto stream = (stub.*pieces)(&context);
    if (write_pieces(*stream, request.SerializeAsString())) stream->WritesDone();
    const std::string bytes = read_pieces(*stream);
    status = stream->Finish();
    if (status.ok() && !reply.ParseFromString(bytes)) status = {grpc::StatusCode::DATA_LOSS, "the reply is malformed"};
  } else {
    status = (stub.*one)(&context, request, &reply);
  }
  if (!status.ok()) fail(status, address);
  return reply;
}

}  // namespace stacked
