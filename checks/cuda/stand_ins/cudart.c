/* Stands in for libcudart: an H200 whose memory is the host's and whose kernels do nothing.

   What is asked of it is recorded as one letter each: k a kernel, p a product (cublas.c), h a copy
   from the host, d a copy to the host, s a wait for the GPU.

   While the file STAND_IN_FAULT has the number of an error, allocations (2) or kernels (700) end
   with it. */
#include <driver_types.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEMORY ((size_t)140 << 30)
#define OUT_OF_MEMORY 2
#define ILLEGAL_ADDRESS 700

char stand_in_events[1 << 16];
atomic_int stand_in_event_count;
atomic_long stand_in_bytes;       /* allocated on the GPU */
atomic_int stand_in_lost;         /* whether each kernel ends with error 700 (cuda.c) */

void stand_in_record(char event) {
  int number = atomic_fetch_add(&stand_in_event_count, 1);
  if (number < (int)sizeof stand_in_events) stand_in_events[number] = event;
}
static int failing(int error) {
  if (stand_in_lost && error == ILLEGAL_ADDRESS) return error;
  const char *name = getenv("STAND_IN_FAULT");
  int file = name != NULL ? open(name, O_RDONLY) : -1;
  char number[8] = "";
  if (file < 0) return 0;
  if (read(file, number, sizeof number - 1) < 0) number[0] = 0;
  close(file);
  return atoi(number) == error ? error : 0;
}

int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }

int cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  struct cudaDeviceProp h200 = {
      .name = "NVIDIA H200", .totalGlobalMem = MEMORY, .major = 9, .minor = 0, .warpSize = 32,
      .multiProcessorCount = 132, .regsPerBlock = 65536, .l2CacheSize = 60 << 20,
      .sharedMemPerBlock = 48 << 10, .sharedMemPerBlockOptin = 227 << 10,
      .sharedMemPerMultiprocessor = 228 << 10, .maxThreadsPerBlock = 1024,
      .maxThreadsPerMultiProcessor = 2048, .maxThreadsDim = {1024, 1024, 64},
      .maxGridSize = {2147483647, 65535, 65535}};
  *properties = h200;
  return 0;
}
int cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    default: *value = 0;
  }
  return 0;
}
int cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 64;
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks) { *blocks = 1; return 0; }

int cudaMemGetInfo(size_t *left, size_t *total) { *left = *total = MEMORY; return 0; }
int cudaMalloc(void **pointer, size_t bytes) {
  if (failing(OUT_OF_MEMORY)) return OUT_OF_MEMORY;
  *pointer = calloc(1, bytes ? bytes : 1);
  if (*pointer == NULL) return OUT_OF_MEMORY;
  stand_in_bytes += malloc_usable_size(*pointer);
  return 0;
}
int cudaFree(void *pointer) {
  if (pointer != NULL) stand_in_bytes -= malloc_usable_size(pointer);
  free(pointer);
  return 0;
}
int cudaMallocHost(void **pointer, size_t bytes) { *pointer = malloc(bytes ? bytes : 1); return 0; }
int cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  return cudaMallocHost(pointer, bytes);
}
int cudaFreeHost(void *pointer) { free(pointer); return 0; }
int cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
  memset(attributes, 0, sizeof *attributes);
  attributes->type = cudaMemoryTypeDevice;
  attributes->devicePointer = (void *)pointer;
  return 0;
}

static int copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  if (kind == cudaMemcpyHostToDevice) stand_in_record('h');
  if (kind == cudaMemcpyDeviceToHost) stand_in_record('d');
  memmove(to, from, bytes);
  return 0;
}
int cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  return copy(to, from, bytes, kind);
}
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  return copy(to, from, bytes, kind);
}
int cudaMemset(void *to, int value, size_t bytes) { memset(to, value, bytes); return 0; }
int cudaMemsetAsync(void *to, int value, size_t bytes) { memset(to, value, bytes); return 0; }

int cudaStreamCreate(void **stream) { *stream = malloc(1); return 0; }
int cudaStreamCreateWithFlags(void **stream) { *stream = malloc(1); return 0; }
int cudaEventCreate(void **event) { *event = malloc(1); return 0; }
int cudaEventCreateWithFlags(void **event) { *event = malloc(1); return 0; }
int cudaStreamEndCapture(void *stream, void **graph) { *graph = malloc(1); return 0; }
int cudaStreamIsCapturing(void *stream, int *capturing) { *capturing = 0; return 0; }
int cudaStreamSynchronize(void *stream) { stand_in_record('s'); return failing(ILLEGAL_ADDRESS); }
int cudaDeviceSynchronize(void) { stand_in_record('s'); return failing(ILLEGAL_ADDRESS); }
int cudaEventSynchronize(void *event) { stand_in_record('s'); return failing(ILLEGAL_ADDRESS); }

void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
int cudaLaunchKernel(void) { stand_in_record('k'); return failing(ILLEGAL_ADDRESS); }
int __cudaLaunchKernel(void) { return cudaLaunchKernel(); }
const char *cudaGetErrorName(int error) {
  return error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "cudaErrorIllegalAddress";
}
const char *cudaGetErrorString(int error) {
  return error == OUT_OF_MEMORY ? "out of memory" : "an illegal memory access was encountered";
}
