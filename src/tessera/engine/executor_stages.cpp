// The executor's side of a pipeline: micro-batches that begin with a message, and the messages that a stage sends. All
// of it runs on the compute thread, so that memory is allocated and freed in the order of the list.
#include "tessera/base/check.h"
#include "tessera/engine/executor.h"
#include "tessera/engine/executor_run.h"
#include "tessera/engine/parallel/slice.h"

namespace tessera::engine {

namespace {

/// Ranks that share its tokens pack a micro-batch in host memory and copy their share of it, targets too.
net::Batch packed(net::Objective& objective, int micro, const Parallel& parallel) {
  if (!parallel.cuts_tokens()) return objective.batch(micro);
  const net::Batch whole = [&] {
    const Meter::Scope host(Part::host);
    return objective.batch(micro);
  }();
  for (Tensor* compared : objective.compared(micro)) *compared = compared->clone();
  return slice(whole, parallel);
}

bool defers_weights(const plan::Plan& plan) { return plan.pipeline.schedule == plan::PipelineSchedule::zero_bubble; }

}  // namespace

/// The micro-batch, loaded at its first instruction on this rank. Later stages need only its tables of tokens.
MicroRun& Executor::load(Run& run, int index) {
  Micro& micro = run.micros[index];
  if (std::exchange(micro.loaded, true)) return micro;
  net::Batch batch = run.batches ? slice((*run.batches)[index], parallel_) : packed(*run.objective, index, parallel_);
  run.tokens[index] = batch.tokens.total();
  run.samples[index] = static_cast<int64_t>(batch.tokens.offsets.size()) - 1;
  micro.batch = on_device(std::move(batch), store_.device(), uploads_);
  if (!messages_.active()) return micro;
  micro.shapes = boundary_shapes(units_, micro.batch);
  if (!run.plan().owns(rank_, 0)) micro.batch.inputs.clear();
  return micro;
}

/// Allocates the message that a `recv` fills, or moves the tensors of a `send` out of the micro-batch.
void Executor::prepare_message(Run& run, int index) {
  const plan::Instruction& in = run.schedule().list[index];
  Micro& micro = load(run, in.micro);
  if (in.op == plan::Op::send) {
    run.messages[index] = outgoing(micro, in, defers_weights(run.plan()));
    return;
  }
  const Message message = messages_.make(in, micro.shapes, store_.device());
  micro.received[{goes_forward(in), in.unit}] = run.messages[index] = message;
}

/// Hands a unit the message that its stage received: its input, or the gradient of its result. The rank's stages share
/// the conditioning, and so its gradients are summed.
void Executor::take_received(Micro& micro, const plan::Instruction& in, bool train) const {
  const bool forward = in.op == plan::Op::forward;
  auto found = micro.received.extract({forward, in.unit});
  if (!found) return;
  Message& message = found.mapped();
  (forward ? micro.stream : micro.stream_grad) = std::move(message.stream);
  if (message.cond.empty()) return;
  if (forward) {
    micro.cond = leaves(message.cond, train && wants_conditioning());
    micro.cond_grad.assign(micro.cond.size(), Tensor());
    return;
  }
  for (size_t c = 0; c < micro.cond_grad.size(); ++c)
    if (micro.cond_grad[c].defined())
      micro.cond_grad[c].add_(message.cond[c]);
    else
      micro.cond_grad[c] = message.cond[c];
}

void Executor::backward_unit(Run& run, const plan::Instruction& in) {
  Micro& micro = run.micros[in.micro];
  const bool stem = in.unit == 0;
  take_received(micro, in, true);
  micro.runs[in.unit].offloaded.clear();  // from here on the graph alone holds these storages
  std::vector<Tensor> out_cond_grad, none;
  if (stem) out_cond_grad = std::move(micro.cond_grad);
  const auto backward = [&] {
    micro.stream_grad =
        run_backward(micro.runs[in.unit], std::move(micro.stream_grad), std::move(out_cond_grad),
                     stem ? std::vector<Tensor>{} : micro.cond, stem ? none : micro.cond_grad, store_.anchor(in.unit));
  };
  if (defers_weights(run.plan())) {
    ops::DeferredGradients& deferred = micro.deferred.emplace(in.unit, store_.trained_sites(in.unit)).first->second;
    const ops::DeferredGradients::Scope scope(deferred);
    backward();
  } else {
    store_.bind_grad(in.unit, in.grad, !in.add);
    backward();
    store_.finish_grad(in.unit);
  }
  if (!stem) return;
  if (options_.input_grad) input_grads_[in.micro] = micro.stream_grad;
  micro.stream_grad.clear();
  if (!defers_weights(run.plan())) micro = Micro{};
}

/// Runs the weight gradients that the unit's backward deferred. The micro-batch ends with the first unit of the rank's
/// first stage.
void Executor::weight_gradients(Run& run, const plan::Instruction& in) {
  Micro& micro = run.micros[in.micro];
  store_.bind_grad(in.unit, in.grad, !in.add);
  micro.deferred.at(in.unit).run();
  micro.deferred.erase(in.unit);
  store_.finish_grad(in.unit);
  if (in.unit == run.plan().first_unit(run.plan().mesh.coordinate(rank_, Axis::pp))) micro = Micro{};
}

/// The stage's message to its neighbour. The micro-batch ends with the gradient of the rank's first stage.
Message Executor::outgoing(Micro& micro, const plan::Instruction& in, bool defers_weights) const {
  Message message;
  const bool conditioning = messages_.carries_conditioning(in);
  if (goes_forward(in)) {
    for (const Tensor& t : std::exchange(micro.stream, {})) message.stream.push_back(t.contiguous());
    if (conditioning)
      for (const Tensor& t : micro.cond) message.cond.push_back(t.detach().contiguous());
    return message;
  }
  // Gradients that no earlier stage needs are sent as zeros: the receiver expects a message of fixed size.
  const auto filled = [device = store_.device()](std::vector<Tensor> values, const std::vector<TensorShape>& shapes) {
    values.resize(shapes.size());
    for (size_t i = 0; i < shapes.size(); ++i)
      values[i] = values[i].defined() ? values[i].contiguous()
                                      : at::zeros(shapes[i].sizes, at::TensorOptions(shapes[i].type).device(device));
    return values;
  };
  message.stream = filled(std::exchange(micro.stream_grad, {}), micro.shapes.stream.at(in.unit + 1));
  if (conditioning) {
    message.cond = filled(std::exchange(micro.cond_grad, {}), micro.shapes.cond);
    if (!defers_weights) micro = Micro{};
  }
  return message;
}

void Executor::finish(Run& run, const plan::Instruction& in, std::vector<plan::Comm>& done) {
  Micro& micro = load(run, in.micro);
  Tensor result = micro.stream.empty() ? Tensor() : micro.stream[0];
  if (messages_.active())
    result = messages_.share_result(result, micro.shapes.stream.back().at(0), store_.device(), done);
  run.results[in.micro] = whole_tokens(result, micro.batch.tokens, parallel_).cpu();
  micro = Micro{};
}

}  // namespace tessera::engine
