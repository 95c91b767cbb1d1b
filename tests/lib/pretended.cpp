// A pretended accelerator: PyTorch's PrivateUse1 device over host memory. Every operator is the CPU's, but tensors of
// different devices do not mix, as on CUDA, and random numbers come from a generator of the device's own.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <set>

namespace {

constexpr auto DEVICE = c10::DeviceType::PrivateUse1;

// Memory: the host's, counted.

std::atomic<int64_t> allocated{0};

struct Block {
  size_t size;
  void* memory;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated -= block->size;
  std::free(block->memory);
  delete block;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    allocated += size;
    auto* block = new Block{size, size ? std::malloc(size) : nullptr};
    return {block->memory, block, &release, c10::Device(DEVICE, 0)};
  }
  void copy_data(void* to, const void* from, std::size_t size) const override { default_copy_data(to, from, size); }
};
Allocator allocator;
REGISTER_ALLOCATOR(DEVICE, &allocator);

// One device, with number 0, whose work is done when a call returns.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<DEVICE> {
  c10::Device exchangeDevice(c10::Device) const override { return {DEVICE, 0}; }
  c10::Device getDevice() const override { return {DEVICE, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(DEVICE, 0)); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto memory = allocator.allocate(size);
    std::memcpy(memory.get(), storage.data(), std::min(size, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};
Hooks hooks;
const bool hooked = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic_symint(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                          c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// The same memory as a tensor of the CPU.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != DEVICE) return tensor;
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU));
}

std::optional<at::Tensor> on_host(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional<at::Tensor>(on_host(*tensor)) : std::nullopt;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) { return on_host(tensor).item(); }

// As on CUDA, an operator takes tensors of one device; scalars of the CPU may join, and indices into a device's tensor.
void check_devices(const std::string& name, at::ArrayRef<c10::IValue> arguments) {
  bool here = false, host = false, first_here = false, first = true;
  auto see = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const bool is_here = tensor.device().type() == DEVICE;
    if (first) first_here = is_here;
    first = false;
    here |= is_here;
    host |= !is_here && (tensor.dim() > 0 || name == "aten::cat" || name == "aten::stack");
  };
  for (const auto& argument : arguments) {
    if (argument.isTensor()) see(argument.toTensor());
    if (argument.isTensorList()) for (const at::Tensor& tensor : argument.toTensorList()) see(tensor);
    if (argument.isOptionalTensorList())
      for (const std::optional<at::Tensor> tensor : argument.toOptionalTensorList())
        if (tensor) see(*tensor);
  }
  static const std::set<std::string> indexed{"aten::index", "aten::index_put", "aten::index_put_",
                                             "aten::_index_put_impl_"};
  const bool indexing = indexed.count(name);
  TORCH_CHECK(!here || !host || (indexing && first_here), "Expected all tensors to be on the same device, but found ",
              "at least two devices, pretended:0 and cpu! (", name, ")");
}

// Random numbers: the state of the device's generator takes the place of the CPU's while an operator runs.

at::Tensor& state() {
  static at::Tensor state = at::make_generator<at::CPUGeneratorImpl>(0).get_state();
  return state;
}

void set_rng_state(const at::Tensor& value) { state() = value.clone(); }

struct OwnRandomness {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Tensor before = generator.get_state();
  OwnRandomness() { generator.set_state(state()); }
  ~OwnRandomness() {
    state() = generator.get_state();
    generator.set_state(before);
  }
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  check_devices(op.operator_name().name, torch::jit::last(*stack, op.schema().arguments().size()));
  std::optional<OwnRandomness> own;
  if (op.hasTag(at::Tag::nondeterministic_seeded)) own.emplace();
  at::native::cpu_fallback(op, stack);
}

// Operators that the fallback cannot run: their results would be on the CPU, or it would lose what they write.

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  check_devices("aten::convolution", {x, weight, bias});
  return at::convolution_symint(on_host(x), on_host(weight), on_host(bias), stride, padding, dilation, transposed,
                                output_padding, groups)
      .to(x.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> wanted) {
  check_devices("aten::convolution_backward", {gradient, x, weight});
  const std::vector<c10::SymInt> bias{transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  auto [to_x, to_weight, to_bias] = at::convolution_backward_symint(
      on_host(gradient), on_host(x), on_host(weight), c10::SymIntArrayRef(bias), stride, padding, dilation, transposed,
      output_padding, groups, wanted);
  auto here = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(x.device()) : tensor; };
  return {here(to_x), here(to_weight), here(to_bias)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& x, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance, bool training, double momentum,
    double epsilon) {
  check_devices("aten::native_batch_norm", {x, weight, bias, mean, variance});
  auto [output, saved_mean, saved_scale] = at::native_batch_norm(
      on_host(x), on_host(weight), on_host(bias), on_host(mean), on_host(variance), training, momentum, epsilon);
  return {output.to(x.device()), saved_mean.to(x.device()), saved_scale.to(x.device())};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(at::native::view));
  m.impl("unfold", at::native::unfold);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("resize_", at::native::resize_);
  m.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, c10::Storage)>(at::native::set_));
  m.impl("set_.source_Storage_storage_offset",
         static_cast<at::Tensor& (*)(at::Tensor&, c10::Storage, int64_t, c10::IntArrayRef, c10::IntArrayRef)>(
             at::native::set_storage_cpu_));
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_batch_norm", &batch_norm);
}

using at::autocast::CastPolicy;
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {  // what the tests' networks use, as on CUDA
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(nll_loss, fp32)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
  KERNEL_PRIVATEUSEONE(log_softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(softmax, int, fp32)
}

TORCH_LIBRARY(pretended, m) {
  m.def("allocated() -> int", [] { return allocated.load(); });
  m.def("get_rng_state() -> Tensor", [] { return state().clone(); });
  m.def("set_rng_state(Tensor state) -> ()", &set_rng_state);
}

}  // namespace
