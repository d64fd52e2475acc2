/* Stands in for the driver: one H200, which CUDA_VISIBLE_DEVICES=-1 hides. A kernel that a program
   starts here, past the runtime, is the one of checks/gpu/steps/faults.py, which loses the GPU. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NO_DEVICE 100
#define MEMORY ((size_t)140 << 30)

extern atomic_long stand_in_bytes;
extern atomic_int stand_in_lost;

int cuInit(unsigned flags) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  return visible != NULL && strcmp(visible, "-1") == 0 ? NO_DEVICE : 0;
}
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
  strncpy(name, "NVIDIA H200", length);
  return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = MEMORY; return 0; }
int cuMemGetInfo_v2(size_t *left, size_t *total) {
  *total = MEMORY;
  *left = MEMORY - stand_in_bytes;
  return 0;
}
int cuModuleLoadData(void **module) { return 0; }
int cuModuleGetFunction(void **function) { return 0; }
int cuLaunchKernel(void) { stand_in_lost = 1; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : 0; /* the compute capability is 9.0 */
  return 0;
}
