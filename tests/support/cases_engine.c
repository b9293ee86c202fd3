/* An engine that only reads and writes files: attention and selection in float32 over exported cases.

   cases_engine DIR [drop]     reads DIR/index.json and the inputs, writes outputs.safetensors into every case's folder
                               whose calls are all of: cache, append, read, attend (own storage), select
   drop                        a wrong engine: attention leaves out the last selected cell of every row

   Nothing of qsa-parity is used here: JSON and safetensors are read by hand. The input is trusted: this is a test. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, const char *which) {
    fprintf(stderr, "cases_engine: %s: %s\n", what, which);
    exit(2);
}

static void *need(size_t size) {
    void *found = calloc(size ? size : 1, 1);
    if (!found) die("no memory", "");
    return found;
}

/* JSON: a value is a number, a text, or a list of items that may have keys. */

typedef struct Json {
    char kind; /* '{' '[' '"' '0' (a number), or 't' 'f' 'n' */
    char *key, *text;
    double number;
    struct Json *first, *next;
} Json;

static const char *at;

static void space(void) { at += strspn(at, " \t\r\n"); }

static char *string(void) {
    const char *end = ++at;
    while (*end && *end != '"') end += *end == '\\' ? 2 : 1;
    char *text = need((size_t)(end - at) + 1);
    memcpy(text, at, (size_t)(end - at));
    at = end + 1;
    return text;
}

static Json *value(void) {
    Json *json = need(sizeof *json);
    space();
    json->kind = *at;
    if (*at == '{' || *at == '[') {
        char close = *at == '{' ? '}' : ']';
        Json **last = &json->first;
        at++;
        for (space(); *at && *at != close; space()) {
            char *key = NULL;
            if (close == '}') {
                key = string();
                space();
                if (*at++ != ':') die("JSON", "no colon");
            }
            *last = value();
            (*last)->key = key;
            last = &(*last)->next;
            space();
            if (*at == ',') at++;
        }
        at++;
    } else if (*at == '"') {
        json->text = string();
    } else if (strchr("tfn", *at)) {
        at += strspn(at, "abcdefghijklmnopqrstuvwxyz");
    } else {
        char *end;
        json->kind = '0';
        json->number = strtod(at, &end);
        if (end == at) die("JSON", "a value is missing");
        at = end;
    }
    return json;
}

static Json *get(Json *object, const char *key) {
    for (Json *item = object ? object->first : NULL; item; item = item->next)
        if (item->key && !strcmp(item->key, key)) return item;
    return NULL;
}

static char *whole(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) die("cannot be read", path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *text = need(*size + 1);
    if (fread(text, 1, *size, file) != *size) die("cannot be read", path);
    fclose(file);
    return text;
}

/* Tensors of a safetensors file: 8 bytes of length, a JSON header, the data. */

typedef struct {
    char *data;
    Json *header;
} Tensors;

static Tensors open_tensors(const char *path) {
    size_t size;
    char *file = whole(path, &size);
    uint64_t length;
    memcpy(&length, file, 8);
    char *text = need(length + 1);
    memcpy(text, file + 8, length);
    at = text;
    Tensors tensors = {file + 8 + length, value()};
    return tensors;
}

/* The tensor of the input `name` of a call; `sizes` gets its shape. */
static const void *input(Tensors tensors, Json *call, const char *name, int64_t *sizes) {
    Json *tensor = get(get(call, "inputs"), name);
    if (!tensor) die("a call lacks an input", name);
    int axis = 0;
    for (Json *size = get(tensor, "shape")->first; size; size = size->next) sizes[axis++] = (int64_t)size->number;
    Json *entry = get(tensors.header, get(tensor, "key")->text);
    if (!entry) die("a file lacks a tensor", name);
    return tensors.data + (int64_t)get(entry, "data_offsets")->first->number;
}

/* Outputs are collected and written at the end of a case. */

typedef struct {
    char *header, *data;
    size_t used, filled;
} Output;

static void put(Output *out, Json *call, const char *name, const char *dtype, const void *data, size_t size) {
    Json *tensor = get(get(call, "outputs"), name);
    if (!tensor) die("a call lacks an output", name);
    char shape[200] = "", number[32];
    for (Json *each = get(tensor, "shape")->first; each; each = each->next) {
        snprintf(number, sizeof number, "%s%lld", *shape ? "," : "", (long long)each->number);
        strcat(shape, number);
    }
    out->header = realloc(out->header, out->used + 600);
    out->data = realloc(out->data, out->filled + size + 1);
    if (!out->header || !out->data) die("no memory", name);
    out->used += (size_t)snprintf(
        out->header + out->used, 600, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
        out->used ? "," : "{", get(tensor, "key")->text, dtype, shape, out->filled, out->filled + size);
    memcpy(out->data + out->filled, data, size);
    out->filled += size;
}

static void write_outputs(const char *path, Output *out) {
    FILE *file = fopen(path, "wb");
    if (!file) die("cannot be written", path);
    uint64_t length = out->used + 1;
    fwrite(&length, 8, 1, file);
    fwrite(out->header, 1, out->used, file);
    fputc('}', file);
    fwrite(out->data, 1, out->filled, file);
    if (fclose(file)) die("cannot be written", path);
}

/* The engine: a store of cells for each handle, attention, selection. */

enum { STORES = 16, KV_HEADS = 2, DIM = 256, CELL = KV_HEADS * DIM, RATIO = 4, TOP_BLOCKS = 512, MOST = 2051 };

typedef struct {
    int64_t capacity, *place; /* place: cell -> number in k and v, plus 1 */
    float *k, *v;
    int64_t count;
} Store;

static Store stores[STORES];

static Store *store_of(Json *call, const char *name) {
    int64_t number = (int64_t)get(get(call, "handles"), name)->number;
    if (number < 0 || number >= STORES) die("too many stores", name);
    return &stores[number];
}

static void append(Tensors in, Json *call) {
    Store *store = store_of(call, "cache");
    int64_t sizes[8];
    const float *k = input(in, call, "k", sizes), *v = input(in, call, "v", sizes);
    const int64_t *positions = input(in, call, "positions", sizes);
    size_t cells = (size_t)(store->count + sizes[0]);
    store->k = realloc(store->k, cells * CELL * sizeof(float));
    store->v = realloc(store->v, cells * CELL * sizeof(float));
    if (!store->k || !store->v) die("no memory", "append");
    memcpy(store->k + store->count * CELL, k, (size_t)sizes[0] * CELL * sizeof(float));
    memcpy(store->v + store->count * CELL, v, (size_t)sizes[0] * CELL * sizeof(float));
    for (int64_t n = 0; n < sizes[0]; n++) {
        int64_t position;
        memcpy(&position, positions + n, sizeof position);
        store->place[position] = ++store->count;
    }
}

static void read_back(Tensors in, Json *call, Output *out) {
    Store *store = store_of(call, "cache");
    int64_t sizes[8];
    const int64_t *positions = input(in, call, "positions", sizes);
    size_t bytes = (size_t)sizes[0] * CELL * sizeof(float);
    float *k = need(bytes), *v = need(bytes);
    for (int64_t n = 0; n < sizes[0]; n++) {
        int64_t position;
        memcpy(&position, positions + n, sizeof position);
        memcpy(k + n * CELL, store->k + (store->place[position] - 1) * CELL, CELL * sizeof(float));
        memcpy(v + n * CELL, store->v + (store->place[position] - 1) * CELL, CELL * sizeof(float));
    }
    put(out, call, "k_read", "F32", k, bytes);
    put(out, call, "v_read", "F32", v, bytes);
    free(k);
    free(v);
}

static void attend(Tensors in, Json *call, Output *out, int drop) {
    Store *store = store_of(call, "kv");
    int64_t sizes[8], rows, heads;
    const float *q = input(in, call, "q", sizes);
    rows = sizes[0], heads = sizes[1];
    const int32_t *steps = input(in, call, "steps", sizes);
    const int32_t *ids = input(in, call, "ids", sizes);
    int64_t cap = sizes[1];
    size_t bytes = (size_t)(rows * heads) * DIM * sizeof(float);
    float *result = need(bytes), *weight = need((size_t)(cap + 1) * sizeof(float));
    for (int64_t row = 0; row < rows; row++) {
        int64_t width = steps[row * 4 + 3] - drop;
        for (int64_t head = 0; head < heads; head++) {
            const float *query = q + (row * heads + head) * DIM;
            float *sum = result + (row * heads + head) * DIM, most = -INFINITY, mass = 0;
            int64_t kv = head / (heads / KV_HEADS);
            for (int64_t n = 0; n < width; n++) {
                const float *key = store->k + (store->place[ids[row * cap + n]] - 1) * CELL + kv * DIM;
                float dot = 0;
                for (int d = 0; d < DIM; d++) dot += query[d] * key[d];
                weight[n] = dot / 16;
                if (weight[n] > most) most = weight[n];
            }
            for (int64_t n = 0; n < width; n++) {
                const float *cell = store->v + (store->place[ids[row * cap + n]] - 1) * CELL + kv * DIM;
                float p = expf(weight[n] - most);
                mass += p;
                for (int d = 0; d < DIM; d++) sum[d] += p * cell[d];
            }
            for (int d = 0; d < DIM && width > 0; d++) sum[d] /= mass;
        }
    }
    put(out, call, "out", "F32", result, bytes);
    free(result);
    free(weight);
}

static const float *compared;

static int better(const void *a, const void *b) {
    int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    if (compared[left] != compared[right]) return compared[left] > compared[right] ? -1 : 1;
    return left < right ? -1 : 1;
}

static int ascending(const void *a, const void *b) {
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

static void choose(Tensors in, Json *call, Output *out) {
    int64_t sizes[8];
    const int32_t *steps = input(in, call, "steps", sizes);
    const float *scores = input(in, call, "scores", sizes);
    int64_t rows = sizes[0], blocks = sizes[1];
    Json *rule = get(get(call, "options"), "rule");
    int cells_rule = rule && !strcmp(rule->text, "cells");
    int32_t *ids = need((size_t)rows * MOST * sizeof *ids), *order = need((size_t)(blocks + 1) * sizeof *order);
    memset(ids, -1, (size_t)rows * MOST * sizeof *ids);
    for (int64_t row = 0; row < rows; row++) {
        int32_t n_kv = steps[row * 4 + 1], n_bid = steps[row * 4 + 2], width = steps[row * 4 + 3], filled = 0;
        int32_t *mine = ids + row * MOST;
        for (int32_t block = 0; block < n_bid; block++) order[block] = block;
        compared = scores + row * blocks;
        qsort(order, (size_t)n_bid, sizeof *order, better);
        for (int32_t cell = n_bid * RATIO; cell < n_kv && filled < width; cell++) mine[filled++] = cell;
        int32_t most = cells_rule || n_bid < TOP_BLOCKS ? n_bid : TOP_BLOCKS;
        for (int32_t n = 0; n < most; n++)
            for (int32_t part = 0; part < RATIO && filled < width; part++) mine[filled++] = order[n] * RATIO + part;
        qsort(mine, (size_t)filled, sizeof *mine, ascending);
    }
    put(out, call, "ids", "I32", ids, (size_t)rows * MOST * sizeof *ids);
    free(ids);
    free(order);
}

static int knows(Json *calls) {
    for (Json *call = calls->first; call; call = call->next) {
        const char *name = get(call, "operation")->text;
        if (!strcmp(name, "attend") && get(get(call, "inputs"), "slots")) return 0;
        if (strcmp(name, "cache") && strcmp(name, "append") && strcmp(name, "read") && strcmp(name, "attend") &&
            strcmp(name, "select"))
            return 0;
    }
    return 1;
}

int main(int count, char **given) {
    if (count < 2) die("usage", "cases_engine DIR [drop]");
    int drop = count > 2 && !strcmp(given[2], "drop"), done = 0;
    char path[4096];
    size_t size;
    snprintf(path, sizeof path, "%s/index.json", given[1]);
    at = whole(path, &size);
    Json *index = value();
    for (Json *each = get(index, "cases")->first; each; each = each->next) {
        Json *calls = get(each, "calls");
        if (!knows(calls)) continue;
        const char *folder = get(each, "folder")->text;
        snprintf(path, sizeof path, "%s/%s/inputs.safetensors", given[1], folder);
        Tensors in = open_tensors(path);
        Output out = {0};
        for (Json *call = calls->first; call; call = call->next) {
            const char *name = get(call, "operation")->text;
            if (!strcmp(name, "cache")) {
                int64_t number = (int64_t)get(call, "gives")->number;
                if (number < 0 || number >= STORES) die("too many stores", folder);
                Store fresh = {(int64_t)get(get(call, "options"), "capacity")->number, NULL, NULL, NULL, 0};
                fresh.place = need((size_t)fresh.capacity * sizeof *fresh.place);
                stores[number] = fresh;
            }
            if (!strcmp(name, "append")) append(in, call);
            if (!strcmp(name, "read")) read_back(in, call, &out);
            if (!strcmp(name, "attend")) attend(in, call, &out, drop);
            if (!strcmp(name, "select")) choose(in, call, &out);
        }
        snprintf(path, sizeof path, "%s/%s/outputs.safetensors", given[1], folder);
        write_outputs(path, &out);
        done++;
    }
    printf("%d cases\n", done);
    return 0;
}
