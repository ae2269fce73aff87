#include "tests/testing/allocation_counter.h"

#include <cerrno>
#include <cstdlib>

// Sanitizers have a malloc of their own, which tells what it hands out; another one cannot be put
// in its place.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TOKENBUTLER_SANITIZER_MALLOC
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TOKENBUTLER_SANITIZER_MALLOC
#endif

extern "C" {
// Of the sanitizers' run-time library; g++ does not install the header.
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                              void (*on_free)(const volatile void*));
// glibc's own functions under the names that it exports for those who replace them.
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* p, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace tokenbutler {
namespace {

thread_local size_t allocated_bytes = 0;
thread_local size_t allocations = 0;

void Count(size_t bytes) {
  allocated_bytes += bytes;
  ++allocations;
}

#ifdef TOKENBUTLER_SANITIZER_MALLOC
void OnMalloc(const volatile void*, size_t bytes) { Count(bytes); }
void OnFree(const volatile void*) {}
[[maybe_unused]] const int installed = __sanitizer_install_malloc_and_free_hooks(OnMalloc, OnFree);
#else
void* Align(size_t alignment, size_t bytes) {
  Count(bytes);
  return __libc_memalign(alignment, bytes);
}
#endif

}  // namespace

AllocationCounter::AllocationCounter()
    : begin_bytes_(allocated_bytes), begin_allocations_(allocations) {}
size_t AllocationCounter::total_bytes() const { return allocated_bytes - begin_bytes_; }
size_t AllocationCounter::num_allocations() const { return allocations - begin_allocations_; }

}  // namespace tokenbutler

#ifndef TOKENBUTLER_SANITIZER_MALLOC
extern "C" {

void* malloc(size_t bytes) noexcept {
  tokenbutler::Count(bytes);
  return __libc_malloc(bytes);
}

void* calloc(size_t count, size_t bytes) noexcept {
  tokenbutler::Count(count * bytes);
  return __libc_calloc(count, bytes);
}

void* realloc(void* p, size_t bytes) noexcept {
  tokenbutler::Count(bytes);
  return __libc_realloc(p, bytes);
}

void* memalign(size_t alignment, size_t bytes) noexcept {
  return tokenbutler::Align(alignment, bytes);
}

void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return tokenbutler::Align(alignment, bytes);
}

int posix_memalign(void** p, size_t alignment, size_t bytes) noexcept {
  *p = tokenbutler::Align(alignment, bytes);
  return *p == nullptr && bytes > 0 ? ENOMEM : 0;
}

}  // extern "C"
#endif
