/* SPDX-License-Identifier: Apache-2.0 */
/* The little JSON that the control program reads: a tree of nodes, kept until the program ends. */
#ifndef FAKENVML_JSON_H
#define FAKENVML_JSON_H

#include <stdint.h>

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_LIST, JSON_OBJECT };

struct json {
    enum json_kind kind;
    double number;
    char *text, *key;
    struct json *first, *next;
};

/* NULL, with *at the offset of the mistake, when the text is no JSON. */
struct json *json_parse(const char *text, long *at);
const struct json *json_get(const struct json *object, const char *key);
/* The value, or what to take when it is absent or null. */
double json_number(const struct json *object, const char *key, double otherwise);
const char *json_text(const struct json *object, const char *key, const char *otherwise);

#endif
