#include "tests/testing/allocation_counter.h"

#include <cstdlib>
#include <new>

namespace tokenbutler {
namespace {
thread_local size_t allocated_bytes = 0;
thread_local size_t allocations = 0;

void* Allocate(size_t bytes) {
  allocated_bytes += bytes;
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
}  // namespace

AllocationCounter::AllocationCounter()
    : begin_bytes_(allocated_bytes), begin_allocations_(allocations) {}
size_t AllocationCounter::total_bytes() const { return allocated_bytes - begin_bytes_; }
size_t AllocationCounter::num_allocations() const { return allocations - begin_allocations_; }

}  // namespace tokenbutler

void* operator new(size_t bytes) {
  void* p = tokenbutler::Allocate(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return tokenbutler::Allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return tokenbutler::Allocate(bytes);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
