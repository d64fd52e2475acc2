/* NVIDIA's driver library, as far as app/sentiment_service/engine/model/device.py uses it. The environment says what it
 * answers: FAKE_CUDA_INIT (the code of cuInit), FAKE_CUDA_VERSION, FAKE_CUDA_DEVICES, and
 * FAKE_CUDA_CAPABILITY_0 and so on (90 for 9.0). */
#include <stdio.h>
#include <stdlib.h>

static int number(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

int cuInit(unsigned flags) { return flags ? 1 : number("FAKE_CUDA_INIT", 0); }

int cuDriverGetVersion(int *version) {
    *version = number("FAKE_CUDA_VERSION", 13000);
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = number("FAKE_CUDA_DEVICES", 1);
    return 0;
}

int cuDeviceGet(int *device, int index) {
    *device = 100 + index; /* a device is not its index */
    return 0;
}

int cuDeviceGetName(char *name, int length, int device) {
    snprintf(name, length, "Fake GPU %d", device - 100);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = (size_t)(device - 99) << 33; /* 8 GiB, 16 GiB, ... */
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    char name[32];
    snprintf(name, sizeof name, "FAKE_CUDA_CAPABILITY_%d", device - 100);
    int capability = number(name, 90);
    *value = attribute == 75 ? capability / 10 : capability % 10;
    return attribute == 75 || attribute == 76 ? 0 : 1;
}
