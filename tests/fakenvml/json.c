/* SPDX-License-Identifier: Apache-2.0 */
/* A recursive-descent JSON reader. */
#include "json.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char *cursor;

static struct json *value(int depth);

static void skip_space(void)
{
    while (isspace((unsigned char)*cursor))
        cursor++;
}

static struct json *node(enum json_kind kind)
{
    struct json *made = calloc(1, sizeof(*made));
    if (!made)
        abort();
    made->kind = kind;
    return made;
}

static char *string(void)
{
    const char *end = ++cursor;
    while (*end && *end != '"')
        end += *end == '\\' && end[1] ? 2 : 1;
    if (*end != '"')
        return NULL;
    char *text = calloc(1, (size_t)(end - cursor) + 1), *to = text;
    if (!text)
        abort();
    for (; cursor < end; cursor++) {
        if (*cursor != '\\') {
            *to++ = *cursor;
            continue;
        }
        cursor++;
        if (*cursor == 'u' && end - cursor > 4) {
            /* Names here are ASCII or raw bytes below 256: that is all that is needed. */
            char digits[5] = {cursor[1], cursor[2], cursor[3], cursor[4], 0};
            *to++ = (char)strtol(digits, NULL, 16);
            cursor += 4;
        } else {
            *to++ = *cursor == 'n' ? '\n' : *cursor == 't' ? '\t' : *cursor;
        }
    }
    cursor = end + 1;
    return text;
}

static struct json *members(enum json_kind kind, char close, int depth)
{
    struct json *made = node(kind), **tail = &made->first;
    cursor++;
    skip_space();
    while (*cursor != close) {
        char *key = NULL;
        if (kind == JSON_OBJECT) {
            if (*cursor != '"' || !(key = string()))
                return NULL;
            skip_space();
            if (*cursor++ != ':')
                return NULL;
        }
        struct json *child = value(depth + 1);
        if (!child)
            return NULL;
        child->key = key;
        *tail = child;
        tail = &child->next;
        skip_space();
        if (*cursor == ',')
            cursor++;
        else if (*cursor != close)
            return NULL;
        skip_space();
    }
    cursor++;
    return made;
}

static struct json *word(const char *text, enum json_kind kind, double number)
{
    if (strncmp(cursor, text, strlen(text)))
        return NULL;
    cursor += strlen(text);
    struct json *made = node(kind);
    made->number = number;
    return made;
}

static struct json *value(int depth)
{
    skip_space();
    if (depth > 64)
        return NULL;
    switch (*cursor) {
    case '{': return members(JSON_OBJECT, '}', depth);
    case '[': return members(JSON_LIST, ']', depth);
    case 't': return word("true", JSON_BOOL, 1);
    case 'f': return word("false", JSON_BOOL, 0);
    case 'n': return word("null", JSON_NULL, 0);
    case '"': {
        struct json *made = node(JSON_STRING);
        made->text = string();
        return made->text ? made : NULL;
    }
    default: {
        char *end;
        double number = strtod(cursor, &end);
        if (end == cursor)
            return NULL;
        cursor = end;
        struct json *made = node(JSON_NUMBER);
        made->number = number;
        return made;
    }
    }
}

struct json *json_parse(const char *text, long *at)
{
    cursor = text;
    struct json *made = value(0);
    if (made)
        skip_space();
    *at = cursor - text;
    return made && !*cursor ? made : NULL;
}

const struct json *json_get(const struct json *object, const char *key)
{
    for (const struct json *child = object ? object->first : NULL; child; child = child->next)
        if (child->key && !strcmp(child->key, key))
            return child->kind == JSON_NULL ? NULL : child;
    return NULL;
}

double json_number(const struct json *object, const char *key, double otherwise)
{
    const struct json *found = json_get(object, key);
    return found && (found->kind == JSON_NUMBER || found->kind == JSON_BOOL) ? found->number : otherwise;
}

const char *json_text(const struct json *object, const char *key, const char *otherwise)
{
    const struct json *found = json_get(object, key);
    return found && found->kind == JSON_STRING ? found->text : otherwise;
}
